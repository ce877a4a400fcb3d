-- pace.lua: reserves requests that one bucket spaces evenly and all other tiers admit at once.
-- Units: µs.
-- Uses: call.lua, flight.lua, plan.lua, queue.lua, state.lua, tail.lua.
-- Gives: chargeEvenly.
-- Sets: atFrontier, firstLanding, frontier.

-- Charges up to most requests behind the frontier, none later than latest, and none a turn or more
-- behind the first future one, if tier i alone decides about all of them. Appends their times to the
-- reply. Returns their number, and the instant of the first future one.
local function chargeEvenly(cost, i, most, latest, future, turnLength)
  local pace = rules[i].pace
  if not pace or guard == 0 or estimates or #readings > 0 then return 0, future end
  for j = 1, #rules do
    local n = cost[unitOf[j]]
    if n > 0 and j ~= i and (rules[j].send or admits(j, most * n) > frontier) then return 0, future end
  end
  local at, part, limit, step, rest = pace(cost[unitOf[i]])
  if not at or step > guard and (tail or newTail({})).isPossible() then return 0, future end
  local first, ahead, count = at, part, 0
  local width, s, group = slots.width, (slots.last - 1) * slots.width + 1, nil
  if slots.first <= slots.last then
    lastRecord(slots)
    if slots[s] > max(at, sendFrom) + guard then return 0, future end -- the last slot has a longer guard
    group = slots[s] - slots[s] % resolution
  end
  local slots, sendFrom, guard, resolution, units = slots, sendFrom, guard, resolution, units -- locals for the loop
  while count < most do
    local instant = part > 0 and at + 1 or at
    if instant > now and not future then future = instant end
    if instant > latest or instant > now and instant - future >= turnLength then break end
    local lands = (instant > sendFrom and instant or sendFrom) + guard
    if group ~= lands - lands % resolution then
      s, group = append(slots) + 1, lands - lands % resolution
      for u = 1, units do slots[s + u] = 0 end
    end
    slots[s] = lands
    for u = 1, units do slots[s + u] = slots[s + u] + cost[u] end
    if instant > frontier then frontier, atFrontier = instant, 0 end
    atFrontier, count = atFrontier + 1, count + 1
    at, part = at + step, part + rest
    if part >= limit then at, part = at + 1, part - limit end
  end
  for u = 1, units do inFlight[u] = inFlight[u] + count * cost[u] end
  firstLanding = slots.first <= slots.last and landing(slots.first, 0) or NEVER
  if count == 0 then return 0, future end
  advance(frontier)
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = 0, first, count, ahead
  reply[n + 5], reply[n + 6], reply[n + 7] = limit, step, rest
  return count, future
end
