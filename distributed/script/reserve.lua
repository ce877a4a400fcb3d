-- reserve.lua: the operations reserve and budget, which reserve requests, each behind the decisions
-- before it. Units: µs.
-- Twin: algorithms/ledger.go, Earliest and Charge.
-- Uses: calendar.lua, call.lua, convert.lua, fixedwindow.lua, flight.lua, lease.lua, line.lua, need.lua, pace.lua,
-- pause.lua, plan.lua, pool.lua, state.lua, tail.lua.
-- Gives: ops.reserve, ops.budget, reserving, the constants below.
-- Sets: crossing, drift, guard, isProbe, notBefore, now, openTurns, pause, pool,
-- probe, probing, sendFrom, usedAlone.

-- How long other requests wait for a probe without another call of its process.
local PROBE = 1000000
local UNGUARDED = 50000 -- how late a probe without a guard may be sent
-- How long after the call the earliest sending of a request may be, at most.
local MOST_AHEAD = 1000000
local SOON = 250000 -- how long before the end of a pause requests are reserved behind it
-- The longest time between two reservations without any, but for a tier that admits less than two
-- requests in it. Whatever is reserved delays the requests of releases with higher limits, too.
local MOST_APART = 90000000

local reserving = {} -- the functions that bundle.lua uses, too

-- How many requests, up to most, every tier admits at the frontier, with its spare amount, if one is
-- admitted there.
local function together(cost, spare, most)
  local function fits(count)
    for i = 1, plan.deciding do
      local n = cost[unitOf[i]]
      if n > 0 and admits(i, count * n + spare[i]) > frontier then return false end
    end
    return true
  end
  if fits(most) then return most end
  local few, many = 1, 2 -- few fit, and many may not
  while many < most and fits(many) do few, many = many, 2 * many end
  many = min(many, most)
  while many - few > 1 do
    local middle = few + divMod(many - few, 2)
    if fits(middle) then few = middle else many = middle end
  end
  return few
end

-- How many requests like the last one, up to most, every tier admits behind it at the frontier,
-- with its spare amount. A learned rate may change with each.
function reserving.fitting(cost, spare, most)
  for i = 1, #rules do
    if rules[i].learns and cost[unitOf[i]] > 0 then return 1 end
  end
  return mayProbe(cost) and 1 or together(cost, spare, most)
end

-- How many more requests tier i admits in a turn, beside the amounts shared already and before requests.
-- Places have no turns.
function reserving.leftOfTurn(i, cost, turnLength, shared, before)
  if rules[i].concurrent then return LATEST end
  local limit, window = rateOf(i)
  local share = mulDiv(limit, turnLength, window)
  return divMod(max(0, share - (shared[unitOf[i]] or 0)), cost[unitOf[i]]) - before
end

-- How many more requests a process may reserve for the frontier, an instant to come for which it has
-- reserved the amounts shared already, and before requests in other calls: as many as the tier that
-- ends the instant admits in a turn. Also returns how many the quota admits there, and that tier.
function reserving.roomFor(cost, spare, turnLength, shared, before)
  local most, latest, room, decides = LATEST, -1, LATEST, nil
  for i = 1, plan.deciding do
    local n = cost[unitOf[i]]
    if n > 0 then most = min(most, (divMod(capacity[i] - spare[i], n))) end
  end
  local fit = most > 1 and together(cost, spare, most) or most
  for i = 1, plan.deciding do
    local n = cost[unitOf[i]]
    local left = n > 0 and reserving.leftOfTurn(i, cost, turnLength, shared, before) or LATEST
    if left < LATEST then
      local all = (fit + 1) * n + spare[i]
      local at = all > capacity[i] and NEVER or admits(i, all)
      if at > latest or at == latest and left < room then latest, room, decides = at, left, i end
    end
  end
  return room, fit, decides
end

-- Whether an instant is too far behind the last reservation to reserve a request for it.
function reserving.isApart(at, cost)
  local most = MOST_APART
  for i = 1, at > max(now, frontier) + most and plan.deciding or 0 do
    local limit, window = rateOf(i)
    most = max(most, 2 * ceilMulDiv(cost[unitOf[i]], window, limit))
  end
  return at > max(now, frontier) + most
end

-- Whether an instant is too late to reserve a request for it.
function line.isTooLate(at, cost)
  if mixedUntil > now then return at > sendFrom end -- it would delay releases that admit more
  return reserving.isApart(at, cost)
end

-- The next arguments as a list of tiers that are budgets.
function reserving.budgets()
  local budgets = {}
  for i = 1, argument() do budgets[i] = argument() end
  return budgets
end

-- By tier, the amount to leave free beside a cost: none in budgets, see Ledger.leaving.
function reserving.spare(budgets, cost, headroom)
  local spare = sparing(cost, headroom)
  for i = 1, #budgets do spare[budgets[i]] = 0 end
  return spare
end

-- The first budget that does not admit a cost at the frontier, if there is one.
function reserving.exhausted(budgets, cost)
  for i = 1, #budgets do
    local amount = cost[unitOf[budgets[i]]]
    if amount > 0 and admits(budgets[i], amount) > frontier then return budgets[i] end
  end
end

-- Adds the cost of requests to amounts.
function reserving.addTo(amounts, cost, count)
  for u = 1, units do amounts[u] = (amounts[u] or 0) + count * cost[u] end
end

-- Corrects the clock with the earliest time that it may show by the caller's estimate. If that is
-- later than now, TIME was set back, by less than passed since the previous call.
function reserving.checkClock(shows)
  if shows <= now then return end
  pool, now, drift = {}, now + 1, drift - 1
  notBefore, reply[1] = max(notBefore, now), now
  if tail then tail.flush() end
end

function ops.reserve(op)
  if ban > now then return end
  local budgets = op == 'budget' and reserving.budgets() or {}
  -- A process reserves for one turn, from the first future request on, so that others have theirs. before
  -- is how many requests the other calls of the round trip reserve, before this one.
  local turnLength, before, floor, ownGuard, replyTime = argument(), argument(), argument(), argument(), argument()
  reserving.checkClock(argument())
  local slack = argument()
  local least = max(notBefore, floor)
  local replyAt = now + replyTime -- when the reply arrives
  line.begin(replyAt, turnLength)
  local n = #reply
  sendFrom = replyAt
  local beforeEnd = probing and awaitsProbe() and 0 or SOON -- the report of its response decides when the next request goes
  if ownGuard > 0 then guard = max(ownGuard, resolution) end
  local reserved, more = false, notBefore < knownUntil
  local first, instant -- of the first and the last future request
  local taken, shared = {}, nil -- what is reserved of the turn, and what counts for the last instant
  if lease then places.begin() end
  local hasTurn = false -- whether the caller has a turn, which ends when a request goes, or receives the next one
  local function endTurn()
    if hasTurn then openTurns, hasTurn = max(0, openTurns - 1), false end
  end
  if not more then
    reply[n + 1], reply[n + 2], reply[n + 3], n = -1, notBefore, 1, n + 3
  elseif notBefore <= now + beforeEnd then
    advance(notBefore)
  end
  while more and cursor <= #arguments do
    local count, within = argument(), argument()
    if count == 0 then
      sendFrom = max(replyAt, min(within, now + MOST_AHEAD))
      count, within = argument(), argument()
    end
    local yields, headroom, soon, turn = count < 0, 0, 0, 0
    if yields then count, headroom, soon, turn = -count, argument(), argument(), argument() end
    local hasTurns = yields -- a turn for each process, see turn.lua
    if soon < 0 then soon, yields = -soon, false end
    local cost = amounts()
    local spare, tooLarge = reserving.spare(budgets, cost, headroom), nil
    for i = plan.deciding, 1, -1 do
      if cost[unitOf[i]] > capacity[i] then tooLarge = i end
    end
    local queueTier = lease and places.queueTier(cost)
    local mayGo, nextTurn, someWent
    if hasTurns then
      include 'turn'
      hasTurn = hasTurn or turn > 0 and within ~= -2
      mayGo, nextTurn = turnOf(turn < 0 and -turn or turn, count, cost, soon)
    end
    local last -- the instant of the previous charge of the group
    while more and count > 0 do
      local what, at, pooled, pooledAt, shorter = tooLarge or -1, NEVER, nil, nil, nil
      local run, paced = count, 0 -- run: how many requests have the same answer, as all refused ones have
      if notBefore > now + beforeEnd and not tooLarge then at, more = notBefore, false end
      if more and queueTier and not tooLarge then
        local fullTier = places.fullTier(cost, spare, headroom, yields)
        if fullTier then what, at, more = fullTier, places.grantsFrom(), false end -- only a release can help
      end
      if more and not tooLarge then
        if not probe and not hasTurns and pool[1] then pooled, pooledAt, shorter = findPooled(max(least, sendFrom), cost, guard, slack) end
        if pooled then at = pooledAt else at, what = earliest(cost) end
        local exhausted = not pooled and reserving.exhausted(budgets, cost)
        what = exhausted or what
        if at > LATEST then at = NEVER end
        local waits = false -- in the line
        if not exhausted and not first and not hasTurns and not queueTier and at > sendFrom + IDLE then waits, at, what = line.wait(cost, spare, count, at, what, within) end
        if exhausted then -- callers don't wait for a budget
        elseif at == NEVER and estimates then
          if lease then places.await(cost, headroom, yields) end
          more = false -- only a settlement can help
        elseif at >= knownUntil then
          at = knownUntil
        elseif at == NEVER then -- callers don't wait for centuries
        elseif within == -2 then
          if headroom > 0 then at, what = earliest(cost, spare) end
          if at > LATEST then at = NEVER end
        elseif waits then
          more = within >= 0 and at - now > within
        elseif within == -1 or at - now <= within then
          if headroom > 0 then at, what = earliest(cost, spare) end
          local room = count
          if hasTurns then
            room = min(count, mayGo)
            more = at <= now + soon and mayGo > 0
          elseif first and line.isOver(at, first) then
            more = false
          elseif at > now then
            first = first or at
            if at == instant then
              if not pooled then room = min(count, (reserving.roomFor(cost, spare, turnLength, shared, before))) end
            elseif at - first < turnLength then
              instant, shared = at, {}
            elseif reserved then
              instant, shared = at, taken
              room = what > 0 and min(count, reserving.leftOfTurn(what, cost, turnLength, taken, before)) or 0
            end
            more = room > 0 and (pooled or not line.isTooLate(at, cost))
          end
          if more then
            run = 1
            if pooled then
              takePooled(pooled, at, cost)
              what = shorter > 0 and -LENT - shorter or -2
            else
              if at == last then
                run = reserving.fitting(cost, spare, room)
              elseif last and room > 2 and not hasTurns and not probe and at <= frontier + guard then
                paced, first = chargeEvenly(cost, what, room, min(within == -1 and LATEST or now + within, knownUntil - 1, LATEST), first, turnLength)
              end
              if paced > 0 then
                run = paced
                if tail then tail.flush() end
              else
                if tail or at > frontier + guard then (tail or newTail({})).add(at, cost, run) end
                charge(at, cost, run)
                what = run - 2 - atFrontier
              end
              last = frontier
            end
            if lease then places.hold(cost, run) end
            line.take()
            if hasTurns then
              mayGo, someWent = mayGo - run, true
              endTurn()
            end
            if paced > 0 and frontier > now then
              instant, shared = frontier, {}
              reserving.addTo(shared, cost, atFrontier)
              reserving.addTo(taken, cost, run)
            elseif at > now and not hasTurns then
              reserving.addTo(taken, cost, run)
              if shared and shared ~= taken then reserving.addTo(shared, cost, run) end
            end
            reserved, usedAlone = true, usedAlone or promised + promisedOld > 0
            probe = probe or probed and not pooled
            if probe then
              isProbe, probing, pause = true, true, max(at, sendFrom) + PROBE + (guard > 0 and guard or UNGUARDED)
              notBefore = pause
            end
          elseif not hasTurns then
            if not queueTier then waits, at, what = line.next(cost, spare, count, at, what, within) end
          elseif within < 0 or at - now <= within then
            endTurn()
            at = min(nextTurn(min(at, LATEST), count, someWent), within > 0 and now + within or LATEST) -- a turn does not make the request late
          end
        end
      end
      if not more then run = 1 end
      if paced > 0 then
        n = #reply
      else
        reply[n + 1], reply[n + 2], reply[n + 3], n = what, at < NEVER and at or -1, run, n + 3
      end
      count = count - run
    end
  end
  crossing = reserved
  if lease then places.finish(reserved) end -- else the call may be a dry run
end

ops.budget = ops.reserve
