-- cancel.lua: the operations cancel, refund and refund_old, which take reservations back. Units: µs.
-- Twin: algorithms/ledger.go, Cancel.
-- Uses: call.lua, convert.lua, fixedwindow.lua, flight.lua, pause.lua, plan.lua, pool.lua, queue.lua, reading.lua,
-- state.lua, tail.lua.
-- Gives: ops.cancel, ops.refund, ops.refund_old.
-- Sets: guard, takeBack.

-- Removes a request that would land at an instant from those in flight. Returns whether it was
-- still in flight. Its units are in one of the slots from that instant on, because an earlier charge may
-- have a longer guard. They are taken from the first ones, so what remains lands no sooner than before. Learned
-- tiers have counted them at their admission.
local function removeInFlight(lands, cost)
  if lands <= frontier then return false end
  local first = slots.last + 1
  while first > slots.first and landing(first - 1, 0) >= lands - lands % resolution do first = first - 1 end
  for u = 1, units do
    local missing = estimated[u] and 0 or cost[u]
    for i = first, slots.last do missing = missing - slots[record(slots, i) + 1 + u] end
    if missing > 0 then return false end
  end
  rewrite(slots, first)
  for u = 1, units do
    local left, i = estimated[u] and 0 or cost[u], first
    inFlight[u] = inFlight[u] - left
    while left > 0 do
      local s = record(slots, i)
      local less = min(left, slots[s + 1 + u])
      slots[s + 1 + u], left, i = slots[s + 1 + u] - less, left - less, i + 1
      for r = 1, #rules do
        if rules[r].learns and unitOf[r] == u then rules[r].refund(frontier, frontier, less) end
      end
    end
  end
  return true
end

-- Takes back a request that has landed since an instant, because later reservations have moved the
-- frontier there. A tier with a report of the provider keeps the units, because the report was compared
-- with them.
local function refundLanded(lands, cost)
  for i = 1, plan.deciding do
    local n, u = cost[unitOf[i]], unitOf[i]
    local isKept = estimated[u] or readings[i] and readings[i][RECEIVED_AT] > 0
    if n > 0 and not isKept and rules[i].refund then rules[i].refund(frontier, lands - lands % resolution, n) end
  end
end

-- Takes back a request that was not sent. Returns whether it was found. If its plan was another one, the
-- tiers may not count it once it has landed, and while releases have unlike limits, reports that were
-- compared with it are not known.
function takeBack(at, ownGuard, cost, isOfPlan)
  local lands = at + ownGuard
  if tail and at > now and tail.take(at, ownGuard, cost) or removeInFlight(lands, cost) then return true end
  if lands > frontier or not isOfPlan or mixedUntil > now then return false end
  refundLanded(lands, cost)
  return true
end

function ops.cancel(op)
  local ofGeneration, setBackBy, ownGuard, canceled = argument(), argument(), argument(), 0
  if ownGuard > 0 then guard = max(ownGuard, resolution) end
  while cursor <= #arguments do
    local at, cost = argument(), amounts()
    if ofGeneration ~= generation then
      -- the reservation was charged to a state that is lost
    elseif at < notBefore or at == now or setBackBy ~= generation - drift or probe or estimates or op ~= 'cancel' then -- the pool has no amounts for estimates
      advance(now)
      if takeBack(at, guard, cost, op ~= 'refund_old') then canceled = canceled + 1 end
      for i = 1, guard == 0 and #rules or 0 do -- the arrival was assumed
        if cost[unitOf[i]] > 0 and rules[i].doubtOpen then rules[i].doubtOpen() end
      end
    elseif tail and tail.withdraw(at, cost) or addToPool(at, cost) or takeBack(at, guard, cost, true) then
      canceled = canceled + 1
    end
  end
  reply[9] = canceled
end

ops.refund, ops.refund_old = ops.cancel, ops.cancel
