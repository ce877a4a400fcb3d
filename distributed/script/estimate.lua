-- estimate.lua: the open estimates, also of other releases. Units: µs.
-- Uses: flight.lua, lease.lua, need.lua, plan.lua, state.lua.
-- Gives: in places: landAmounts, countEstimates, readEstimates, keepSums.
-- Sets: estimates, estimating, leases.
--
-- A plan without leases has no access to their keys. It keeps their sums while others estimate.

-- Lands amounts at the frontier.
function places.landAmounts(list)
  advance(now)
  for i = 1, #rules do
    local n = list[unitOf[i]]
    if n > 0 then land(i, frontier, n) end
  end
end

-- Adds the open estimates to what is in flight, and lands those that are settled.
function places.countEstimates(settled)
  for u = 1, units do
    if estimating[u] then inFlight[u] = inFlight[u] + open[u] end
    estimates = estimates or estimating[u] and open[u] > 0 or settled[u] > 0
  end
  if estimates then places.landAmounts(settled) end
end

-- Reads which of the open amounts contain estimates.
function places.readEstimates()
  estimating = {}
  for u = 1, units do
    estimating[u] = estimated[u] or open[u] >= WITH_ESTIMATES and not plan.limited[u]
    open[u] = open[u] % WITH_ESTIMATES
  end
end

-- Keeps the sums of leases for a plan without leases: other releases estimate a unit. When the last
-- lease ends, the open estimates become the cost of their requests.
function places.keepSums()
  local settled, ends = {}, leases[1][LAST_EXPIRY] + leases[1][BEHIND] <= now
  leases = leases[1]
  for u = 1, units do open[u] = leases[SUMS + u] end
  places.readEstimates()
  for u = 1, units do
    settled[u] = ends and estimating[u] and open[u] or 0
    if ends then open[u] = 0 end
  end
  if ends then leases = {} end
  places.countEstimates(settled)
end
