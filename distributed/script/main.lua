-- throttle: one quota of a fleet, decided in one call.
--
-- It answers as algorithms.Ledger does, of which it is the twin, with bookings
-- ahead of time: a booking is Earliest, then Charge at the instant it returned, and
-- the next is behind it: first in, first out.
--
-- KEYS[1]  the quota: a string, see state.lua; also the channel on which the fleet
--          is told of a pause, "pause <for> <ban> <epoch>", of its early end, "resume <epoch>",
--          or of a place, "freed"
-- ARGV     whole numbers, instants and lengths in µs
--   op     r, b, u, x, l, p, e, o, q or c, see below
--   plan   guard, grain (what lands within 2^grain µs lands together), U units, K tiers,
--          U hashes of the units' names, and for each tier: algorithm, unit from 0,
--          limit, window, burst (of a calendar: more than any period takes), extra (precision,
--          phase, or a hash of period and zone)
--   starts only with calendar tiers: for each, when five periods begin, see calendar.lua
--   lease  only with a concurrency tier or estimates: owner, seq, length, U amounts held
--          now, and with estimates U amounts settled since the last call
--   op's own, where a cost is U amounts:
--   r  reserve  ahead, floor, the guard of these requests (0: the plan's), how long the reply
--               takes, then groups of: count, within (-1: no bound, -2: only asked), cost; or of -count, within, headroom,
--               soon, cost for requests that yield: they leave so many percent of every
--               tier's capacity, and are booked so little ahead of time. Answers pairs of what and t, for each request: -1-n is booked at t,
--               as the n-th of that instant (one that was given back: as the first);
--               i > 0: tier i would be ready at t, or -1: never; -1: what was booked
--               before, or a pause, decides. What would wait longer than within is
--               not booked. The first that has to wait is booked any time ahead, with
--               it no more than ahead of them: the next ends the call, as a full
--               concurrency tier does, and what yields and can't go soon. What was given
--               back goes out again first, but not before floor, the caller's own last
--               booking, and not to what yields.
--               With calendar tiers there are four numbers more for each: from and to how
--               many percent it has come, if it has, units used, and its end as Unix time;
--               and t may be the end of what is known, if it is later.
--               Behind a pause nothing is reserved before the last SOON of it. The first
--               behind a pause with a probe is that probe, and the last of its call: then
--               the pause lasts for PROBE beyond the latest instant at which it may be sent.
--   b  reserve  how many tiers are budgets, which they are, and then as r. What they have
--               no room for is not booked: i is the first of them then.
--   u  unbook   generation, the guard of these requests (0: the plan's), then groups of: t,
--               cost. What is booked for later can be lent, but not with estimates, nor in a
--               pause or before a probe; anything else is canceled. Answers how many of them.
--   x  cancel   as u, but nothing is lent: it was decided under another plan.
--   l  lease    nothing. Only tells what is held, and answers the four numbers of
--               calendar tiers.
--   p  pause    for, ban 0 or 1, once 0 or 1, epoch, probe 0 or 1. Answers 1 if it lasts
--               longer than what is; with once, only if nothing came since epoch. The rest of
--               a pause that is longer than a ban is a pause. With probe, one request goes first when it ends.
--   e  end      epoch, how, for. 0 ends a pause, a ban and the wait for a probe, whatever the
--               epoch. The others are about the probe of the epoch, if that is waited for: 1,
--               its response is in, and ends the wait; 2, it will get none, and the next
--               request is a probe; 3, nothing will tell, and the wait is all; 4, its process
--               lives and waits, so that the wait lasts so long from now at least. Answers 1 if
--               that probe was waited for.
--   o  observe  groups of: tier from 1, units that its provider counts, instant at which
--               the request was admitted whose response says so, what that cost of the
--               tier's unit, 1 if it is exact, how long until the count ends at the latest,
--               or 0, and by how much sooner it may end.
--   q  status   Answers for each tier: used, instant of the next unit, instant when
--               unused; -1: never.
--   c  charge   for each tier an amount that its provider has counted already.
-- Reply    now, generation, expiry of the key in ms, epoch, end of the ban, or else of the
--          pause (0: none), 1 if that is a ban, 2 if what the call has reserved is the probe, TIME,
--          and then the op's own
--
-- Nothing is written before all has been decided: an error leaves all as it was.

local LATEST = 2 ^ 52 -- an instant beyond, 142 years ahead, is as good as never

local reply, n = {now, generation, 0, epoch, 0, 0, wall}, 7
local crossing -- whether it is told how far calendars have come; nil: not even that it is not
local news -- what the fleet is told
local probe = flags % 8 >= 4
local probing = flags >= 8 and pause > now
local isProbe = false -- whether this call has reserved the probe
local PROBE = 1000000 -- for how long the first request after a pause goes alone unless its process tells that it waits
local UNGUARDED = 50000 -- how late it may be sent where there is no guard
local SOON = 250000 -- how long before a pause ends requests are reserved behind it
local held = math.max(now, pause) -- nothing goes before

while pool[1] and pool[1][1] < held do table.remove(pool, 1) end

if (op == 'r' or op == 'b') and ban <= now then
  local budgets = op == 'b' and {}
  for i = 1, budgets and argument() or 0 do budgets[i] = argument() end
  local ahead, least, own = argument(), math.max(held, argument()), argument()
  sent = now + argument()
  if own > 0 then guard = math.max(own, grain) end
  local booked, more = false, held < known
  if not more then
    reply[n + 1], reply[n + 2], n = -1, held, n + 2
  elseif held <= now + SOON then
    advance(held)
  end
  while more and cursor <= #ARGV do
    local count, within = argument(), argument()
    local yields, headroom, soon = count < 0, 0, 0
    if yields then count, headroom, soon = -count, argument(), argument() end
    local cost, spare = amounts(), {}
    local impossible
    for i = #rules, 1, -1 do
      local left = capacity[i] - cost[unitOf[i]]
      if left < 0 then impossible = i end
      spare[i] = math.min(math.floor(capacity[i] * headroom / 100), left)
    end
    for i = 1, budgets and #budgets or 0 do spare[budgets[i]] = 0 end -- see Ledger.leaving
    while more and count > 0 do
      local what, at, lent = impossible or -1, NEVER, nil
      if held > now + SOON and not impossible then at, more = held, false end
      if more and concurrent and not impossible then -- full
        for i = #rules, 1, -1 do
          local amount = cost[unitOf[i]]
          if rules[i].concurrent and amount > 0 and rules[i].earliest(now, amount + spare[i]) == NEVER then
            what, starving, more = i, true, false -- only a release can help
          end
        end
      end
      if more and not impossible then
        lent = not probe and not yields and pool[1] and find(math.max(least, sent), cost)
        if lent then at = pool[lent][1] else at, what = earliest(cost) end
        local exhausted = false
        for i = budgets and #budgets or 0, 1, -1 do
          local b = budgets[i]
          local amount = not lent and at > frontier and cost[unitOf[b]] or 0
          if amount > 0 and admits(b, amount) > frontier then what, exhausted = b, true end
        end
        if at > LATEST then at = NEVER end
        if exhausted then -- nobody waits for a budget
        elseif at == NEVER and estimates then
          starving, more = true, false -- only what is settled can help
        elseif at >= known then
          at = known
        elseif at == NEVER then -- nor for centuries
        elseif within == -2 then
          if headroom > 0 then at, what = earliest(cost, spare) end
          if at > LATEST then at = NEVER end
        elseif within == -1 or at - now <= within then
          if headroom > 0 then at, what = earliest(cost, spare) end
          more = at <= now or ahead > 0 or not booked
          if yields then more = at <= now + soon end
          if more then
            if lent then table.remove(pool, lent) else charge(at, cost) end
            if lease then
              for u = 1, units do
                lease[3 + u], open[u] = lease[3 + u] + cost[u], open[u] + cost[u]
                if estimated[u] then aloft[u] = aloft[u] + cost[u] end
              end
            end
            if at > now then ahead = ahead - 1 end
            booked, what = true, lent and -2 or -1 - crowd
            if probe then
              isProbe, probing, pause = true, true, math.max(at, sent) + PROBE + (guard > 0 and guard or UNGUARDED)
              held = pause
            end
          elseif yields then
            at = math.min(at, within > 0 and now + within or LATEST) -- it is not late
          end
        end
      end
      reply[n + 1], reply[n + 2], n = what, at < NEVER and at or -1, n + 2
      count = count - 1
    end
  end
  crossing = booked
elseif op == 'u' or op == 'x' then
  local of, own, taken = argument(), argument(), 0
  if own > 0 then guard = math.max(own, grain) end
  while cursor <= #ARGV do
    local at, cost = argument(), amounts()
    if of ~= generation then
      -- it was charged to a state that is lost
    elseif at < held or at == now or probe or estimates or op == 'x' then -- another would have no place for its estimates
      advance(now)
      if cancel(at + guard, cost) then taken = taken + 1 end
    elseif #pool < POOL then
      giveBack(at, cost)
      taken = taken + 1
    end
  end
  reply[8] = taken
elseif op == 'p' then
  local ends, close, once, of, first = math.min(now + argument(), LATEST), argument(), argument(), argument(), argument()
  reply[8] = 0
  if probing then held = now end -- the wait for a probe is no pause
  if (once == 0 or of == epoch) and (ends > held or first == 1 and ends == now and held == now) then
    pause, epoch, reply[8] = ends, (epoch + 1) % 2 ^ 32, 1
    if close == 1 then ban = ends end
    probe, probing = probe or first == 1, false
    local shut = ban > now
    news = string.format('pause %.0f %.0f %.0f', (shut and ban or ends) - now, shut and 1 or 0, epoch)
  end
elseif op == 'e' then
  local of, how, more = argument(), argument(), argument()
  reply[8] = probing and of == epoch and 1 or 0
  if how == 0 then
    pause, ban, epoch, probe, probing = 0, 0, (epoch + 1) % 2 ^ 32, false, false
    news = string.format('resume %.0f', epoch)
  elseif reply[8] == 1 and how == 4 then
    pause = math.max(pause, now + more)
  elseif reply[8] == 1 then
    probe = how == 2
    if how < 3 then pause, probing, news = 0, false, 'freed' end
  end
elseif op == 'q' then
  advance(now)
  for i = 1, #rules do
    local used, next = rules[i].used(frontier) + apart(i), admits(i, 1)
    if not rules[i].concurrent then used = used + aloft[unitOf[i]] end
    reply[n + 1], reply[n + 2], n = used, next < NEVER and next or -1, n + 3
  end
elseif op == 'o' then
  advance(now)
  while cursor <= #ARGV do
    local i, used, since, n, sure, reset, slack = argument(), argument(), argument(), argument(), argument(), argument(), argument()
    local rule, u, r = rules[i], unitOf[i], readings[i]
    local ended = rule.opened and rule.opened(frontier) > since or r and r[9] > since
    used, reset = math.min(used, capacity[i]), math.max(0, reset - (frontier - now))
    if not rule.concurrent and not ended then
      local keep = estimated[u] and math.max(0, used - aloft[u]) or used
      local more = others(i, used, since, n)
      r = readings[i]
      if more > 0 then
        if rule.depart then rule.depart(frontier) end
        landOthers(i, more, reset, slack)
      elseif sure == 1 and since >= exact then
        rule.forget(frontier, keep)
        if own[i] then own[i].forget(frontier, keep) end
        r[7] = math.max(0, math.min(r[7], keep - rule.used(frontier)))
      end
      keepOthers(i, used, since, n, reset, slack)
      tellReset(i, reset, slack, more)
    end
    if sure == 1 then exact = math.max(exact, since) end
  end
elseif op == 'c' then
  advance(now)
  for i = 1, #rules do
    local amount, rule = argument(), rules[i]
    if amount > 0 then
      if rule.depart then rule.depart(frontier) end
      land(i, frontier, amount)
    end
  end
end

if op == 'l' then crossing = true end
if crossing ~= nil then
  for i = 1, #calendars do
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], n = 0, 0, 0, 0, n + 4
    if crossing then reply[n - 3], reply[n - 2], reply[n - 1], reply[n] = calendars[i].crossed(frontier) end
  end
end
