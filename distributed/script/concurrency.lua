-- concurrency.lua: at most limit units open at once, over all processes. Units: µs.
-- Twin: algorithms/concurrency.go, which decides alike. Only here may a process die without
-- releasing its units, see lease.lua.
-- Uses: flight.lua.
-- Gives: concurrency.

local function concurrency(unit, limit)
  local rule = {concurrent = true}
  function rule.load() end
  function rule.earliest(now, n) return open[unit] + n <= limit and now or NEVER end
  function rule.land() end
  function rule.used() return open[unit] end
  function rule.fresh(now) return open[unit] > 0 and NEVER or now end
  function rule.expires() return 0 end
  function rule.words() return '' end
  return rule
end
