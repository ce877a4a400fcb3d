-- reserve.lua: the operations r and b, which reserve requests, each behind the decisions before it.
-- Units: µs.
-- Twin: algorithms/ledger.go, Earliest and Charge.
-- Uses: flight.lua, pool.lua, pace.lua, tail.lua, places, turn.lua. Gives: ops.r, ops.b, fitting,
-- checkClock, the constants below.

local PROBE = 1000000 -- how long other requests wait for a probe without another call of its process
local UNGUARDED = 50000 -- how late a probe without a guard may be sent
local MOST_AHEAD = 1000000 -- how long after the call the earliest sending of a request may be, at most
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
  if mayTry(cost) then return 1 end
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
  held, reply[1] = max(held, now), now
  if trail then trail.flush() end
end

function ops.r(op)
  if ban > now then return end
  local n = #reply
  local budgets = op == 'b' and {}
  for i = 1, budgets and argument() or 0 do budgets[i] = argument() end
  local ahead, floor, way, answer = argument(), argument(), argument(), argument()
  checkClock(argument())
  local least = max(held, floor)
  local heard = now + answer -- when the reply arrives
  sent = heard
  local near = probing and trying() and 0 or SOON -- the reading of the probe's response decides about a try
  if way > 0 then guard = max(way, grain) end
  local booked, more = false, held < known
  local kept = lease and lease[5] or 0 -- the instant until which a place is kept for the caller
  if kept > 0 then
    places.keep(lease, -1)
    lease[5], isFirst = 0, true
  end
  if not more then
    reply[n + 1], reply[n + 2], reply[n + 3], n = -1, held, 1, n + 3
  elseif held <= now + near then
    advance(held)
  end
  while more and cursor <= #arguments do
    local count, within = argument(), argument()
    if count == 0 then
      sent = max(heard, min(within, now + MOST_AHEAD))
      count, within = argument(), argument()
    end
    local yields, headroom, soon, turn = count < 0, 0, 0, 0
    if yields then count, headroom, soon, turn = -count, argument(), argument(), argument() end
    local cost = amounts()
    local spare, impossible = sparing(cost, headroom), nil
    for i = plan.deciding, 1, -1 do
      if cost[unitOf[i]] > capacity[i] then impossible = i end
    end
    local gate = lease and places.gateOf(cost)
    local may, nextTurn, went
    if yields then
      include 'turn'
      may, nextTurn = turnOf(turn, count, cost, soon)
    end
    for i = 1, budgets and #budgets or 0 do spare[budgets[i]] = 0 end -- see Ledger.leaving
    local last -- the instant of the previous charge of the group
    while more and count > 0 do
      local what, at, lent = impossible or -1, NEVER, nil
      local run, paced = count, 0 -- run: how many requests have the same answer, as all refused ones have
      if held > now + near and not impossible then at, more = held, false end
      if more and gate and not impossible then
        local full = places.fullFor(cost, spare) or places.othersWait(yields) and gate
        if full then -- only a release can help
          what, wants, more = full, {cost = cost, headroom = headroom, yields = yields}, false
        end
      end
      if more and not impossible then
        lent = not probe and not yields and pool[1] and find(max(least, sent), cost)
        if lent then at = pool[lent][1] else at, what = earliest(cost) end
        local exhausted = false
        for i = budgets and #budgets or 0, 1, -1 do
          local b = budgets[i]
          local amount = not lent and at > frontier and cost[unitOf[b]] or 0
          if amount > 0 and admits(b, amount) > frontier then what, exhausted = b, true end
        end
        if at > LATEST then at = NEVER end
        if exhausted then -- callers don't wait for a budget
        elseif at == NEVER and estimates then
          wants, more = {cost = cost, headroom = headroom, yields = yields}, false -- only a settlement can help
        elseif at >= known then
          at = known
        elseif at == NEVER then -- callers don't wait for centuries
        elseif within == -2 then
          if headroom > 0 then at, what = earliest(cost, spare) end
          if at > LATEST then at = NEVER end
        elseif within == -1 or at - now <= within then
          if headroom > 0 then at, what = earliest(cost, spare) end
          more = at <= now or ahead > 0 or not booked
          if yields then more = at <= now + soon and may > 0 end
          if more then
            run = 1
            if lent then
              take(lent, cost)
              what = -2
            else
              local most = yields and min(count, may) or at > now and min(count, ahead) or count
              if at == last then
                run = fitting(cost, spare, most)
              elseif last and most > 2 and not yields and not probe and at <= frontier + guard then
                paced = charged(cost, what, most, min(within == -1 and LATEST or now + within, known - 1, LATEST))
              end
              if paced > 0 then
                run = paced
                if trail then trail.flush() end
              else
                if trail or at > frontier + guard then (trail or newTrail({})).add(at, cost, run) end
                charge(at, cost, run)
                what = run - 2 - crowd
              end
              last = frontier
            end
            if lease then places.hold(cost, run) end
            if yields then may, went = may - run, true end
            if at > now then ahead = ahead - run end
            booked, isFirst = true, false
            probe = probe or tries and not lent
            if probe then
              isProbe, probing, pause = true, true, max(at, sent) + PROBE + (guard > 0 and guard or UNGUARDED)
              held = pause
            end
          elseif yields then
            at = min(nextTurn(min(at, LATEST), count, went), within > 0 and now + within or LATEST) -- a turn does not make the request late
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
  crossing = booked
  if wants then
    places.stand()
  elseif lease and booked then
    places.leave()
  elseif kept > 0 then -- the call was a dry run
    lease[5] = kept
    places.keep(lease, 1)
  end
end

ops.b = ops.r
