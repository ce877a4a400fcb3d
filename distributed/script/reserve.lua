-- reserve.lua: the operations reserve and budget, which reserve requests, each behind the decisions
-- before it. Units: µs.
-- Twin: algorithms/ledger.go, Earliest and Charge.
-- Uses: calendar.lua, call.lua, fixedwindow.lua, flight.lua, lease.lua, need.lua, pace.lua,
-- pause.lua, plan.lua, pool.lua, state.lua, tail.lua.
-- Gives: ops.reserve, ops.budget, fitting, checkClock, the constants below.
-- Sets: awaited, crossing, drift, guard, hadPlace, isProbe, notBefore, now, pause, pool, probe,
-- probing, sendFrom, usedAlone.

-- How long other requests wait for a probe without another call of its process.
local PROBE = 1000000
local UNGUARDED = 50000 -- how late a probe without a guard may be sent
-- How long after the call the earliest sending of a request may be, at most.
local MOST_AHEAD = 1000000
local SOON = 250000 -- how long before the end of a pause requests are reserved behind it

-- How many requests like the last one, up to most, every tier admits behind it at the frontier,
-- with its spare amount.
local function fitting(cost, spare, most)
  local function fits(count)
    for i = 1, plan.deciding do
      local n = cost[unitOf[i]]
      if n > 0 and admits(i, count * n + spare[i]) > frontier then return false end
    end
    return true
  end
  if mayProbe(cost) then return 1 end
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

-- Corrects the clock with the earliest time that it may show by the caller's estimate. If that is
-- later than now, TIME was set back, by less than passed since the previous call.
local function checkClock(shows)
  if shows <= now then return end
  pool, now, drift = {}, now + 1, drift - 1
  notBefore, reply[1] = max(notBefore, now), now
  if tail then tail.flush() end
end

function ops.reserve(op)
  if ban > now then return end
  local n = #reply
  local budgets = op == 'budget' and {}
  for i = 1, budgets and argument() or 0 do budgets[i] = argument() end
  local ahead, floor, ownGuard, replyTime = argument(), argument(), argument(), argument()
  checkClock(argument())
  local least = max(notBefore, floor)
  local replyAt = now + replyTime -- when the reply arrives
  sendFrom = replyAt
  local beforeEnd = probing and awaitsProbe() and 0 or SOON -- the report of its response decides when the next request goes
  if ownGuard > 0 then guard = max(ownGuard, resolution) end
  local reserved, more = false, notBefore < knownUntil
  local kept = lease and lease[KEPT_UNTIL] or 0 -- the instant until which a place is kept for the caller
  if kept > 0 then
    places.countKept(lease, -1)
    lease[KEPT_UNTIL], hadPlace = 0, true
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
    local cost = amounts()
    local spare, tooLarge = sparing(cost, headroom), nil
    for i = plan.deciding, 1, -1 do
      if cost[unitOf[i]] > capacity[i] then tooLarge = i end
    end
    local queueTier = lease and places.queueTier(cost)
    local mayGo, nextTurn, someWent
    if yields then
      include 'turn'
      mayGo, nextTurn = turnOf(turn, count, cost, soon)
    end
    for i = 1, budgets and #budgets or 0 do spare[budgets[i]] = 0 end -- see Ledger.leaving
    local last -- the instant of the previous charge of the group
    while more and count > 0 do
      local what, at, pooled = tooLarge or -1, NEVER, nil
      local run, paced = count, 0 -- run: how many requests have the same answer, as all refused ones have
      if notBefore > now + beforeEnd and not tooLarge then at, more = notBefore, false end
      if more and queueTier and not tooLarge then
        local fullTier = places.fullFor(cost, spare) or places.othersWait(yields) and queueTier
        if fullTier then -- only a release can help
          what, awaited, more = fullTier, {cost = cost, headroom = headroom, yields = yields}, false
        end
      end
      if more and not tooLarge then
        pooled = not probe and not yields and pool[1] and findPooled(max(least, sendFrom), cost)
        if pooled then at = pool[pooled][1] else at, what = earliest(cost) end
        local exhausted = false
        for i = budgets and #budgets or 0, 1, -1 do
          local b = budgets[i]
          local amount = not pooled and at > frontier and cost[unitOf[b]] or 0
          if amount > 0 and admits(b, amount) > frontier then what, exhausted = b, true end
        end
        if at > LATEST then at = NEVER end
        if exhausted then -- callers don't wait for a budget
        elseif at == NEVER and estimates then
          awaited, more = {cost = cost, headroom = headroom, yields = yields}, false -- only a settlement can help
        elseif at >= knownUntil then
          at = knownUntil
        elseif at == NEVER then -- callers don't wait for centuries
        elseif within == -2 then
          if headroom > 0 then at, what = earliest(cost, spare) end
          if at > LATEST then at = NEVER end
        elseif within == -1 or at - now <= within then
          if headroom > 0 then at, what = earliest(cost, spare) end
          more = at <= now or ahead > 0 or not reserved
          if yields then more = at <= now + soon and mayGo > 0 end
          if more then
            run = 1
            if pooled then
              takePooled(pooled, cost)
              what = -2
            else
              local most = yields and min(count, mayGo) or at > now and min(count, ahead) or count
              if at == last then
                run = fitting(cost, spare, most)
              elseif last and most > 2 and not yields and not probe and at <= frontier + guard then
                paced = chargeEvenly(cost, what, most, min(within == -1 and LATEST or now + within, knownUntil - 1, LATEST))
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
            if yields then mayGo, someWent = mayGo - run, true end
            if at > now then ahead = ahead - run end
            reserved, hadPlace, usedAlone = true, false, usedAlone or promised + promisedOld > 0
            probe = probe or probed and not pooled
            if probe then
              isProbe, probing, pause = true, true, max(at, sendFrom) + PROBE + (guard > 0 and guard or UNGUARDED)
              notBefore = pause
            end
          elseif yields and (within < 0 or at - now <= within) then
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
  if awaited then
    if lease then places.enqueue() end
  elseif lease and reserved then
    places.leave()
  elseif kept > 0 then -- the call was a dry run
    lease[KEPT_UNTIL] = kept
    places.countKept(lease, 1)
  end
end

ops.budget = ops.reserve
