-- bundle.lua: the operation bundle, which reserves the same times in one quota and in those around
-- it. Units: µs. Go: bundle.go.
-- Uses: calendar.lua, call.lua, flight.lua, lease.lua, line.lua, need.lua, pack.lua, pause.lua, plan.lua, pool.lua,
-- reserve.lua, rule.lua, save.lua, state.lua, tail.lua, turn.lua.
-- Gives: newBundle, ops.bundle.
-- Sets: arguments, bundledUntil, crossing, cursor, guard, isProbe, notBefore, oldEnd, orderKey, pause, probe, probing,
-- promised, promisedOld, recordsKey, sendFrom, turnsEnd, usedAlone, wall.
--
-- Each quota has an instant from which on it admits a request. All of them admit it from the latest
-- of these instants on. The request is charged in each quota at that instant, and the next request
-- in any of them is behind it, even one that comes from elsewhere inside the outermost quota. So a
-- request is reserved at most soon behind the instant at which the outermost quota alone admits it.
--
-- Where an inner quota is slower, processes have turns. Each process is promised some requests, for
-- the instant at which the quota has room for all requests that are promised before, and one more,
-- but no more requests than fit there.
-- A promise charges nothing, so a promise that is not taken costs nothing.
--
-- A request that finds no place in a quota waits for that one. Meanwhile the caller keeps the places
-- that were kept for it in the quotas inside that one, whose other callers need the same place. It gives
-- up those around it, which callers in other inner quotas can use.
--
-- Each quota keeps its locals in an instance of the library of its own, see script.go. Each
-- quota has a clock of its own, so instances exchange lengths of time from now on, not instants.

local MISSED = 250000 -- how long after its instant a promise expires

-- Makes the functions of a bundle. turnTo and addCrossings are those of main.lua.
local function newBundle(turnTo, addCrossings)
  local own = {} -- the functions of this instance's quota
  local quotas -- those of this call's quotas: this one, and those around it, the outermost last
  local instances = {own} -- all that were made
  local blocked -- for how long nothing is reserved, because of a pause or a probe
  local known -- how long until the end of the known periods of a calendar
  local headroom -- the percentage of the quota that requests which yield leave
  local budgets -- the tiers that refuse requests

  -- Begins to reserve requests, by the next arguments: their guard, the earliest time that the clock may
  -- show, headroom, and budgets. The reply comes after replyTime. Returns for how long nothing is reserved, and
  -- until when all periods are known.
  function own.begin(replyTime)
    local ownGuard, shows = argument(), argument()
    headroom, budgets = argument(), reserving.budgets()
    if tail then tail.commit(true) end
    if pool[1] then dropPooled(notBefore) end
    reserving.checkClock(shows)
    sendFrom, bundledUntil = now + replyTime, now + BUNDLED
    if ownGuard > 0 then guard = max(ownGuard, resolution) end
    if lease then places.begin() end
    local ends = knownUntil < NEVER and knownUntil - now or NEVER
    if ban > now or notBefore > now + (probing and awaitsProbe() and 0 or SOON) then return notBefore - now, ends end
    advance(notBefore)
    return 0, ends
  end

  -- The next amounts, false if all are zero.
  function own.amounts(next)
    local cost, some = {}, false
    for u = 1, units do
      cost[u] = u <= plan.ownUnits and next() or 0
      some = some or cost[u] > 0
    end
    return some and cost
  end

  function own.tiers() return plan.deciding end

  local function spareFor(cost, yields) return reserving.spare(budgets, cost, yields and headroom or 0) end

  -- The tier that has no place for a request, if there is one, and how long until places are granted.
  function own.fullTier(cost, yields)
    local tier = lease and places.fullTier(cost, spareFor(cost, yields), headroom, yields)
    if tier then return tier, places.grantsFrom() < NEVER and places.grantsFrom() - now or NEVER end
  end

  -- Waits for a settlement, if only that can help.
  function own.await(cost, yields)
    if lease and estimates then places.await(cost, headroom, yields) end
    return lease and estimates
  end

  -- How long until all tiers admit a request, the tier that decides, or -1, and whether that is a budget,
  -- for which callers don't wait.
  function own.readyIn(cost, yields)
    local at, tier = earliest(cost, spareFor(cost, yields))
    local exhausted = reserving.exhausted(budgets, cost)
    return at <= LATEST and at - now or NEVER, exhausted or tier, exhausted
  end

  -- How many requests a tier admits in a turn, at least one.
  local function shareOf(i, cost, turnLength) return max(1, reserving.leftOfTurn(i, cost, turnLength, {}, 0)) end
  own.shareOf, own.addTo = shareOf, reserving.addTo

  -- A lower bound of how long until count requests are admitted one behind the other, and how many the
  -- tier that decides admits in a turn.
  local function readyFor(cost, count, turnLength)
    local at, share = frontier, 1
    for i = 1, plan.deciding do
      local u, t = unitOf[i], 5 + units + 6 * (i - 1)
      local n = cost[u]
      if n > 0 and plan[t] ~= CONCURRENCY then
        local most = max(1, (divMod(capacity[i] - (estimated[u] and open[u] or 0), n)))
        local rounds, rest = divMod(count - 1, most)
        local limit, window = rateOf(i)
        local round = drains(plan[t]) and ceilMulDiv(most * n, window, limit) or window + guard
        local ready = admits(i, (rest + 1) * n)
        ready = ready <= LATEST and min(LATEST, ready + rounds * round) or 0 -- only a settlement can tell
        if turnLength and ready >= at then
          local own = shareOf(i, cost, turnLength)
          if ready > at or own > share then share = own end
        end
        at = max(at, ready)
      end
    end
    return at - now, share
  end

  -- Adds count requests to those that are promised for an instant. count may be negative.
  local function promise(at, count)
    if at <= oldEnd then promisedOld = max(0, promisedOld + count) else promised = max(0, promised + count) end
  end

  -- How many requests, up to most, are admitted within soon behind all that are promised.
  local function unpromised(cost, most, soon)
    local before = promised + promisedOld
    if readyFor(cost, before + 1) > soon then return 0 end
    local few, many = 1, most + 1 -- few are admitted, and many are not
    while many - few > 1 do
      local middle = few + divMod(many - few, 2)
      if readyFor(cost, before + middle) <= soon then few = middle else many = middle end
    end
    return few
  end

  -- How many more requests a process may reserve for an instant to come, see reserving.roomFor, and how many the
  -- quota admits there.
  function own.roomFor(cost, yields, turnLength, shared)
    return reserving.roomFor(cost, spareFor(cost, yields), turnLength, shared, 0)
  end

  function own.isApart(wait, cost) return reserving.isApart(now + wait, cost) end

  -- How many requests, up to most, are admitted at the instant of the last one.
  function own.fitting(cost, yields, most) return reserving.fitting(cost, spareFor(cost, yields), most) end

  -- Charges requests. Returns for how long nothing is reserved behind them, because of a probe, and how
  -- many requests are charged at their instant.
  function own.charge(wait, cost, count)
    charge(now + wait, cost, count)
    if lease then places.hold(cost, count) end
    probe = probe or probed
    if not probe then return 0, atFrontier end
    isProbe, probing, pause = true, true, max(now + wait, sendFrom) + PROBE + (guard > 0 and guard or UNGUARDED)
    notBefore = pause
    return notBefore - now, atFrontier
  end

  -- How long until the first returned reservation with room for a request that comes after later,
  -- or the one that comes exactly then, and its index in the pool.
  function own.pooledIn(cost, later, exactly)
    if probe then return nil end
    local from = max(sendFrom, now + (exactly or later + 1))
    local i, at = findPooled(from, cost, guard, 0, exactly and now + exactly)
    if i then return at - now, i end
  end

  -- Whether a request is admitted in some time, behind others.
  function own.isReady(wait, cost, others) return not reserving.exhausted(budgets, cost) and readyFor(cost, others + 1) <= wait end

  -- Takes a returned reservation, if entry is not nil, or else charges a request.
  function own.take(entry, wait, cost)
    if not entry then return (own.charge(wait, cost, 1)) end
    takePooled(entry, now + wait, cost)
    if lease then places.hold(cost, 1) end
    return 0
  end

  -- Takes a returned reservation of the outermost quota, if each other quota has one for the same
  -- time, or room. Returns how long until that time.
  local function takePooledTime(costs, outermost, most)
    local wait, place = -1, nil
    while outermost > 1 do
      wait, place = quotas[outermost].pooledIn(costs[outermost], wait)
      if not wait or wait > most then return nil end
      local fits, entries = true, {[outermost] = place}
      for i = 1, outermost - 1 do
        if fits and costs[i] then
          entries[i] = select(2, quotas[i].pooledIn(costs[i], 0, wait))
          fits = entries[i] or quotas[i].isReady(wait, costs[i], i == 1 and promised + promisedOld or 0)
        end
      end
      for i = 1, fits and outermost or 0 do
        if costs[i] then blocked = max(blocked, quotas[i].take(entries[i], wait, costs[i])) end
      end
      if fits then return wait end
    end
  end

  -- Turns to the quota whose keys and arguments come next, and begins to reserve in it. Returns the problem, if
  -- there is one, or else where the next ones come and what begin returns.
  function own.enter(keys, k, words, at, time, replyTime)
    if not call then bind() end
    arguments, cursor, wall, recordsKey, orderKey = words, at + 1, time, keys[k + 1], keys[k + 2]
    local problem = turnTo(keys[k], words[at])
    if problem then return problem end
    local pauses, ends = own.begin(replyTime)
    return nil, own.keys(), cursor, pauses, ends
  end

  -- How many keys the quota has.
  function own.keys() return lease and 3 or 1 end

  -- Reads the states of the other keys. Returns the problem, if there is one.
  local function begin(keys)
    local replyTime, k = argument(), 1 + own.keys()
    quotas = {own}
    blocked, known = own.begin(replyTime)
    while k <= #keys do
      local i = #quotas + 1
      if not instances[i] then
        local _, define = instance()
        instances[i] = define()
      end
      quotas[i] = instances[i]
      local problem, taken, next, pauses, ends = quotas[i].enter(keys, k, arguments, cursor, wall, replyTime)
      if problem then return problem end
      blocked, known, k, cursor = max(blocked, pauses), min(known, ends), k + taken, next
    end
  end

  -- Ends the grants of a call, and leaves the queue or keeps what it has there.
  function own.finish(reserved, leaves)
    crossing = reserved
    if lease then places.finish(leaves) end
  end

  -- The tier of a quota that has no place for a request, if there is one, how long until places are granted,
  -- and the quota.
  local function fullTier(costs, yields)
    local tiers = 0
    for i = 1, #quotas do
      local tier, wait
      if costs[i] then tier, wait = quotas[i].fullTier(costs[i], yields) end
      if tier then return tiers + tier, wait, i end
      tiers = tiers + quotas[i].tiers()
    end
  end

  -- Charges requests in all quotas. Returns how many are charged at their instant.
  local function chargeAll(at, costs, run)
    local together
    for i = 1, #quotas do
      if costs[i] then
        local pauses, n = quotas[i].charge(at, costs[i], run)
        blocked, together = max(blocked, pauses), together or n
      end
    end
    return together
  end

  -- How many more requests a process may reserve for an instant, beside the amounts shared already.
  local function roomBeside(costs, yields, turnLength, shared)
    local room, fewest = LATEST, NEVER
    for i = 1, #quotas do
      if costs[i] then
        local own, fit = quotas[i].roomFor(costs[i], yields, turnLength, shared[i])
        if fit < fewest then room, fewest = own, fit end
      end
    end
    return room
  end

  function ops.bundle()
    local turnLength, soon, turn, turnCount = argument(), argument(), argument(), argument()
    reply[9], reply[10] = -1, 0
    for i = 1, 8 * (#quotas - 1) do reply[10 + i] = 0 end
    local left = 0 -- how many promised requests the caller may still take
    if turn + MISSED < now or turn > max(now, turnsEnd) then turn, turnCount = 0, 0 end -- or of a lost state
    if oldEnd + MISSED < now then promised, promisedOld, oldEnd = 0, promised, turnsEnd end
    local n, reserved, more = #reply, false, true
    local first, instant -- how long until the first and the last future request
    local taken, shared = 0, {} -- how many future requests are reserved, and by quota what is reserved for the last instant
    local full -- the quota in which the caller waits for a place
    while more and cursor <= #arguments do
      local count, within = argument(), argument()
      local yields = count < 0
      if yields then count = -count end
      local costs, outermost = {}, 1
      for i = 1, #quotas do
        costs[i] = quotas[i].amounts(argument)
        if costs[i] then outermost = i end
      end
      local cost = costs[1]
      local last -- how long until the previous request of the group
      while more and count > 0 do
        -- at: how long until the request; by and decides: the quota and its tier that decide; idle: how long
        -- until the outermost quota alone admits it
        local at, what, run, idle, by, decides = blocked, -1, 1, 0, 1, -1
        local pooled, exhausted = false, false
        if blocked == 0 then
          local tier, wait, i = fullTier(costs, yields)
          if tier then at, what, full = wait, tier, i end
        end
        if blocked > 0 or full then
          more = false -- only a release can help, or the end of a pause
        elseif not yields then
          pooled = takePooledTime(costs, outermost, within < 0 and LATEST or within)
        end
        if more and not pooled then
          local tiers = 0
          for i = 1, #quotas do
            if costs[i] then
              local e, tier, over = quotas[i].readyIn(costs[i], yields)
              if i == outermost then idle = e end
              if over and not exhausted then exhausted = tiers + tier end
              if e > at then at, what, by, decides = e, tier > 0 and tiers + tier or -1, i, tier end
            end
            tiers = tiers + quotas[i].tiers()
          end
        end
        if not more then -- see above
        elseif pooled then
          at, what, reserved = pooled, -2, true
        elseif exhausted then
          what = exhausted
        elseif at >= known or at == NEVER then
          if at == NEVER and quotas[by].await(costs[by], yields) then full = by else at = min(at, known) end
          more = false
        elseif within >= 0 and at > within then
          run = count
        elseif cost and own.isApart(at, cost) or quotas[outermost].isApart(at, costs[outermost]) then
          more = false
        else
          local late, lost = soon + idle, false -- lost: the caller has a turn, which a process that uses the quota alone may have taken
          if turn > now + late then
            turnCount = 0 -- the turn is still to come
          elseif turn > 0 then
            promise(turn, -turnCount)
            left, turn, lost = turnCount, 0, usedAlone
          end
          local others, share, may = promised + promisedOld, count, count
          if cost then
            share = select(2, readyFor(cost, others + 1, turnLength))
            may = turn > 0 and 0 or max(left, unpromised(cost, others > 0 and min(count, share) or count, late))
          end
          local near = may > 0 and at <= (yields and soon or late)
          more = near
          local room = min(count, may)
          if near and at > 0 then
            first = first or at
            if at ~= instant and at - first >= turnLength and reserved then
              room = min(room, (decides < 0 and 0 or quotas[by].shareOf(decides, costs[by], turnLength)) - taken)
            elseif at ~= instant then
              instant, shared = at, {}
              for i = 1, #quotas do shared[i] = {} end
            else
              room = min(room, roomBeside(costs, yields, turnLength, shared))
            end
            more = room > 0
          end
          if more then
            run = at == last and room or 1
            for i = 1, at == last and #quotas or 0 do
              if costs[i] then run = min(run, quotas[i].fitting(costs[i], yields, run)) end
            end
            what = run - 2 - chargeAll(at, costs, run)
            left, reserved, last = max(0, left - run), true, at
            if at > 0 then taken = taken + run end
            for i = 1, at > 0 and at == instant and #quotas or 0 do
              if costs[i] then quotas[i].addTo(shared[i], costs[i], run) end
            end
          elseif not near then
            if lost or frontier > max(notBefore, now + late) then -- processes that use the quota alone reserve further ahead
              reply[10], usedAlone = -1, false
            elseif turn > 0 then
              at = max(at, turn - now)
            elseif cost then
              local next = min(count, left > 0 and left or share)
              if left == 0 then at = max(at, (readyFor(cost, others + 1))) end -- else the caller is first
              if within < 0 or at <= within then
                if left == 0 then next = max(1, unpromised(cost, next, at)) end
                promise(now + at, next)
                reply[10] = next
                turnsEnd = max(turnsEnd, now + at)
              end
            end
            if within >= 0 then at = min(at, within) end -- the requests before it may leave
            reply[9] = yields and 0 or idle
          end
        end
        reply[n + 1], reply[n + 2], reply[n + 3], n = what, at < NEVER and now + at or -1, run, n + 3
        count = count - run
      end
    end
    for i = 1, #quotas do quotas[i].finish(reserved, reserved or not full or i > full) end
  end

  -- Saves the quotas around, and appends their headers to the reply, and the crossings of their calendars.
  local function finish()
    for i = 2, #quotas do
      local own, n = quotas[i].save(), #reply
      for j = 1, 8 do reply[2 + 8 * (i - 1) + j] = own[j] end
      for j = 9, #own do reply[n + j - 8] = own[j] end
    end
  end

  function own.save()
    addCrossings()
    save()
    return reply
  end

  own.bundle = {begin = begin, finish = finish}
  return own
end
