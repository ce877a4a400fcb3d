-- count.lua: the operation count, which charges units that a provider has counted already.
-- Units: µs.
-- Twin: algorithms/ledger.go, Count.
-- Uses: call.lua, flight.lua, plan.lua, state.lua.
-- Gives: ops.count.

function ops.count()
  advance(now)
  for i = 1, plan.deciding do
    local amount, rule = argument(), rules[i]
    if amount > 0 then
      if rule.send then rule.send(frontier, amount, 1) end
      land(i, frontier, amount)
    end
  end
end
