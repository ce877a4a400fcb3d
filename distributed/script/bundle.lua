-- bundle.lua: the operation bundle, which reserves the same times in one quota and in those around
-- it. Units: µs. Go: bundle.go.
-- Uses: call.lua, flight.lua, pack.lua, pause.lua, plan.lua, pool.lua, reserve.lua, rule.lua,
-- save.lua, state.lua, tail.lua, turn.lua.
-- Gives: newBundle, ops.bundle.
-- Sets: cursor, guard, isProbe, notBefore, oldEnd, pause, probe, probing, promised, promisedOld,
-- sendFrom, turnsEnd, usedAlone, wall.
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
-- A quota around keeps its locals in an instance of the library of its own, see script.go. Each
-- quota has a clock of its own, so instances exchange lengths of time from now on, not instants.

local MISSED = 250000 -- how long after its instant a promise expires

-- Makes the functions of a bundle. turnTo is that of main.lua.
local function newBundle(turnTo)
  local around -- the instances of this call's quotas around the first, the outermost last
  local instances = {} -- all instances that were made
  local blocked -- for how long nothing is reserved, because of a pause or a probe
  local headroom -- the percentage of the quota that requests which yield leave

  -- Begins to reserve requests with a guard, for a caller that knows the earliest time that the
  -- clock may show, and that receives the reply after replyTime. Requests that yield leave a
  -- percentage. Returns for how long nothing is reserved.
  local function beginReserving(ownGuard, shows, leaves, replyTime)
    headroom = leaves
    if tail then tail.commit(true) end
    checkClock(shows)
    sendFrom = now + replyTime
    if ownGuard > 0 then guard = max(ownGuard, resolution) end
    if ban > now or notBefore > now + (probing and awaitsProbe() and 0 or SOON) then return notBefore - now end
    advance(notBefore)
    return 0
  end

  -- The next amounts, false if all are zero.
  local function amountsOrNone(next)
    local cost, some = {}, false
    for u = 1, units do
      cost[u] = u <= plan.ownUnits and next() or 0
      some = some or cost[u] > 0
    end
    return some and cost
  end

  -- How long until all tiers admit a request, and the tier that decides, or -1.
  local function readyIn(cost, yields)
    local at, tier = earliest(cost, sparing(cost, yields and headroom or 0))
    return at <= LATEST and at - now or NEVER, tier
  end

  -- How many requests a tier admits in a turn, at least one.
  local function shareOf(i, cost, turnLength) return max(1, leftOfTurn(i, cost, turnLength, {}, 0)) end

  -- A lower bound of how long until count requests are admitted one behind the other, and how many the
  -- tier that decides admits in a turn.
  local function readyFor(cost, count, turnLength)
    local at, share = frontier, 1
    for i = 1, plan.deciding do
      local n, t = cost[unitOf[i]], 5 + units + 6 * (i - 1)
      if n > 0 then
        local most = max(1, (divMod(capacity[i], n)))
        local rounds, rest = divMod(count - 1, most)
        local round = isBucket(plan[t]) and ceilMulDiv(most * n, plan[t + 3], plan[t + 2]) or plan[t + 3] + guard
        local ready = min(LATEST, admits(i, (rest + 1) * n) + rounds * round)
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

  -- How many more requests a process may reserve for an instant to come, see roomFor, and how many the
  -- quota admits there.
  local function roomBeside(cost, yields, turnLength, shared)
    return roomFor(cost, sparing(cost, yields and headroom or 0), turnLength, shared, 0)
  end

  local function isApartIn(wait, cost) return isApart(now + wait, cost) end

  -- How many requests, up to most, are admitted at the instant of the last one.
  local function fittingBeside(cost, yields, most) return fitting(cost, sparing(cost, yields and headroom or 0), most) end

  -- Charges requests. Returns for how long nothing is reserved behind them, because of a probe.
  local function chargeIn(wait, cost, count)
    charge(now + wait, cost, count)
    probe = probe or probed
    if not probe then return 0 end
    isProbe, probing, pause = true, true, max(now + wait, sendFrom) + PROBE + (guard > 0 and guard or UNGUARDED)
    notBefore = pause
    return notBefore - now
  end

  -- How long until the first returned reservation with room for a request that comes after later,
  -- or the one that comes exactly then, and its index in the pool.
  local function pooledIn(cost, later, exactly)
    if probe then return nil end
    local from = max(sendFrom, now + (exactly or later + 1))
    local i, at = findPooled(from, cost, guard, 0, exactly and now + exactly)
    if i then return at - now, i end
  end

  local function takeIn(entry, wait, cost) takePooled(entry, now + wait, cost) end

  -- Takes a returned reservation of the outermost quota, if each other quota has one for the same
  -- time, or room. Returns how long until that time.
  local function takePooledTime(cost, costs, outermost, most)
    local outer, wait, place = around[outermost], -1, nil
    if not outer then return nil end
    while true do
      wait, place = outer.pooledIn(costs[outermost], wait)
      if not wait or wait > most then return nil end
      local _, own = pooledIn(cost, 0, wait)
      local fits, places = own or readyFor(cost, promised + promisedOld + 1) <= wait, {}
      for i = 1, outermost - 1 do
        if fits and costs[i] then
          _, places[i] = around[i].pooledIn(costs[i], 0, wait)
          fits = places[i] or around[i].readyIn(costs[i], false) <= wait
        end
      end
      if fits then
        outer.takeIn(place, wait, costs[outermost])
        for i = 1, outermost - 1 do
          if places[i] then
            around[i].takeIn(places[i], wait, costs[i])
          elseif costs[i] then
            blocked = max(blocked, around[i].chargeIn(wait, costs[i], 1))
          end
        end
        if own then takeIn(own, wait, cost) else blocked = max(blocked, chargeIn(wait, cost, 1)) end
        return wait
      end
    end
  end

  -- Reads the states of the other keys. Returns the problem, if there is one.
  local function begin(keys)
    local replyTime = argument()
    around, blocked = {}, beginReserving(argument(), argument(), argument(), replyTime)
    for i = 2, #keys do
      if not instances[i] then
        local _, define = instance()
        instances[i] = define()
      end
      around[i - 1] = instances[i]
      local words = arguments[cursor]
      cursor = cursor + 1
      local problem, pauses = around[i - 1].enter(keys[i], words, wall, argument(), argument(), argument(), replyTime)
      if problem then return problem end
      blocked = max(blocked, pauses)
    end
  end

  function ops.bundle()
    local turnLength, soon, turn, turnCount = argument(), argument(), argument(), argument()
    reply[9], reply[10] = -1, 0
    for i = 1, 8 * #around do reply[10 + i] = 0 end
    local left = 0 -- how many promised requests the caller may still take
    if turn + MISSED < now or turn > max(now, turnsEnd) then turn, turnCount = 0, 0 end -- or of a lost state
    if oldEnd + MISSED < now then promised, promisedOld, oldEnd = 0, promised, turnsEnd end
    local n, reserved, more = #reply, false, true
    local first, instant -- how long until the first and the last future request
    local taken, shared = 0, nil -- how many future requests are reserved, and by quota what is reserved for the last instant
    while more and cursor <= #arguments do
      local count, within = argument(), argument()
      local yields = count < 0
      if yields then count = -count end
      local cost, costs, outermost = amounts(), {}, 0
      for i = 1, #around do
        costs[i] = around[i].amounts(argument)
        if costs[i] then outermost = i end
      end
      local last -- how long until the previous request of the group
      while more and count > 0 do
        -- at: how long until the request; by and decides: the quota and its tier that decide; idle: how long
        -- until the outermost quota alone admits it
        local at, what, run, idle, by, decides = blocked, -1, 1, 0, 0, -1
        local pooled = at == 0 and not yields and takePooledTime(cost, costs, outermost, within < 0 and LATEST or within)
        if pooled then
          at, what = pooled, -2
        elseif at == 0 then
          local tiers = plan.deciding
          at, what = readyIn(cost, yields)
          decides = what
          for i = 1, #around do
            if costs[i] then
              local e, tier = around[i].readyIn(costs[i], yields)
              if i == outermost then idle = e end
              if e > at then at, what, by, decides = e, tier > 0 and tiers + tier or -1, i, tier end
            end
            tiers = tiers + around[i].tiers()
          end
        end
        if pooled then
          reserved = true
        elseif blocked > 0 or at == NEVER then
          more = false
        elseif within >= 0 and at > within then
          run = count
        elseif isApartIn(at, cost) or outermost > 0 and around[outermost].isApartIn(at, costs[outermost]) then
          more = false
        else
          local late, lost = soon + idle, false -- lost: the caller has a turn, which a process that uses the quota alone may have taken
          if turn > now + late then
            turnCount = 0 -- the turn is still to come
          elseif turn > 0 then
            promise(turn, -turnCount)
            left, turn, lost = turnCount, 0, usedAlone
          end
          local _, share = readyFor(cost, promised + promisedOld + 1, turnLength)
          local may = turn > 0 and 0 or max(left, unpromised(cost, promised + promisedOld > 0 and min(count, share) or count, late))
          local near = may > 0 and at <= (yields and soon or late)
          more = near
          local room = min(count, may)
          if near and at > 0 then
            first = first or at
            if at ~= instant and at - first >= turnLength and reserved then
              local all = decides < 0 and 0 or by > 0 and around[by].shareOf(decides, costs[by], turnLength) or shareOf(decides, cost, turnLength)
              room = min(room, all - taken)
            elseif at ~= instant then
              instant, shared = at, {[0] = {}}
              for i = 1, #around do shared[i] = {} end
            else
              local left, fewest = roomBeside(cost, yields, turnLength, shared[0])
              for i = 1, #around do
                if costs[i] then
                  local other, fit = around[i].roomBeside(costs[i], yields, turnLength, shared[i])
                  if fit < fewest then left, fewest = other, fit end
                end
              end
              room = min(room, left)
            end
            more = room > 0
          end
          if more then
            if at == last then
              run = fittingBeside(cost, yields, room)
              for i = 1, #around do
                if costs[i] then run = min(run, around[i].fitting(costs[i], yields, run)) end
              end
            end
            blocked = chargeIn(at, cost, run)
            for i = 1, #around do
              if costs[i] then blocked = max(blocked, around[i].chargeIn(at, costs[i], run)) end
            end
            what, left, reserved, last = run - 2 - atFrontier, max(0, left - run), true, at
            if at > 0 then
              taken = taken + run
              if at == instant then addTo(shared[0], cost, run) end
              for i = 1, #around do
                if costs[i] and at == instant then around[i].addTo(shared[i], costs[i], run) end
              end
            end
          elseif not near then
            if lost or frontier > max(notBefore, now + late) then -- processes that use the quota alone reserve further ahead
              reply[10], usedAlone = -1, false
            elseif turn > 0 then
              at = max(at, turn - now)
            else
              local next = min(count, left > 0 and left or share)
              if left == 0 then at = max(at, readyFor(cost, promised + promisedOld + 1)) end -- else the caller is first
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
  end

  -- Saves the quotas around, and appends their headers to the reply.
  local function finish()
    for i = 1, #around do
      local header = around[i].leave()
      for j = 1, 8 do reply[2 + 8 * i + j] = header[j] end
    end
  end

  -- Reads the state of a quota around another. Returns the problem, if there is one, and for how
  -- long nothing is reserved.
  local function enter(name, words, time, ownGuard, shows, leaves, replyTime)
    if not call then bind() end
    wall = time
    local problem = turnTo(name, words)
    return problem, not problem and beginReserving(ownGuard, shows, leaves, replyTime)
  end

  local function leave()
    save()
    return reply
  end

  return {
    begin = begin, finish = finish, enter = enter, leave = leave, readyIn = readyIn, fitting = fittingBeside, chargeIn = chargeIn,
    pooledIn = pooledIn, takeIn = takeIn, roomBeside = roomBeside, isApartIn = isApartIn, shareOf = shareOf, addTo = addTo, amounts = amountsOrNone, tiers = function() return plan.deciding end,
  }
end
