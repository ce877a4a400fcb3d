-- unbook.lua: takes bookings back, to be lent or canceled. Units: µs.

function ops.u(op)
  local of, back, way, taken = argument(), argument(), argument(), 0
  if way > 0 then guard = max(way, grain) end
  while cursor <= #arguments do
    local at, cost = argument(), amounts()
    if of ~= generation then
      -- it was charged to a state that is lost
    elseif at < held or at == now or back ~= generation - drift or probe or estimates or op == 'x' then -- another would have no place for its estimates
      advance(now)
      if cancel(at + guard, cost) then taken = taken + 1 end
    elseif trail and trail.withdraw(at, cost) or giveBack(at, cost) then
      taken = taken + 1
    end
  end
  reply[9] = taken
end

ops.x = ops.u
