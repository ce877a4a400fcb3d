-- concurrency.lua: at most limit units open at once, over all processes.
-- Units: lease in µs. Twin: algorithms/concurrency.go decides alike; that a process
-- may die without releasing is known only here.
--
-- Each process (owner) tells with every call what it holds, numbered by seq, and
-- is believed for the length of its lease.

local open = {} -- of each unit, what is held by all owners
local leases = {} -- {owner, seq, expiry, held of each unit}
local lease -- the caller's
local starving, freed = false, false -- someone was refused; something came free since

local function concurrency(unit, limit)
  local rule = {concurrent = true}
  function rule.earliest(now, n) return open[unit] + n <= limit and now or NEVER end
  function rule.land() end
  function rule.used() return open[unit] end
  function rule.fresh(now) return open[unit] > 0 and NEVER or now end
  function rule.expires() return 0 end
  function rule.words() return '' end
  return rule
end

local function count()
  local sum = {}
  for u = 1, units do
    sum[u] = 0
    for i = 1, #leases do sum[u] = sum[u] + leases[i][3 + u] end
  end
  return sum
end

local function readLeases(at, n)
  local width = 3 + units
  for i = 1, n do leases[i] = {parse(sevens(width), body, at + 7 * width * (i - 1))} end
end

-- Drops what is no longer believed, and takes the caller's word for what it holds.
-- False if a later call of the same caller has come before.
local function syncLeases(now)
  local owner, seq, length = argument(), argument(), argument()
  local held, before, alive = amounts(), count(), {}
  for i = 1, #leases do
    local l = leases[i]
    if l[3] > now then alive[#alive + 1] = l end
    if l[3] > now and l[1] == owner then lease = l end
  end
  if lease and seq <= lease[2] then return false end
  leases = alive
  if not lease then
    lease = {}
    leases[#leases + 1] = lease
  end
  lease[1], lease[2], lease[3] = owner, seq, now + length
  for u = 1, units do lease[3 + u] = held[u] end
  open = count()
  for u = 1, units do freed = freed or starving and open[u] < before[u] end
  starving = starving and not freed
  return true
end

local function hold(cost)
  for u = 1, units do
    lease[3 + u] = lease[3 + u] + cost[u]
    open[u] = open[u] + cost[u]
  end
end

local function leaseBytes()
  local out, width = {}, 3 + units
  for i = 1, #leases do out[i] = pack(sevens(width), spread(leases[i], 1, width)) end
  return concat(out)
end
