-- throttle: one quota of a fleet, decided in one call.
--
-- It answers as algorithms.Ledger does, of which it is the twin, with bookings
-- ahead of time: a booking is Earliest, then Charge at the instant it returned, and
-- the next is behind it: first in, first out.
--
-- KEYS[1]  the quota: a string, laid out in layout.lua; also the channel on which
--          the fleet is told of a pause or of places that came free
-- ARGV     whole numbers, instants and lengths in µs
--   op     r, u, l, p, q or c, see below
--   plan   guard, grain (a slot of the guard is 2^grain µs), U units, K tiers,
--          U hashes of the units' names, and for each tier: algorithm, unit from 0,
--          limit, window, burst, extra (precision or phase)
--   lease  only with a concurrency tier: owner, seq, length, U amounts held now
--   op's own, where a cost is U amounts:
--   r  reserve  horizon, floor, then groups of: count, within (-1: no bound), cost.
--               Pairs of what and t, one for each request: 0 is booked at t;
--               i > 0: tier i would be ready at t, or -1: never; -1: what was booked
--               before, or a pause, decides. What would wait longer than within is
--               not booked; the second and later ones of a call neither when they
--               would wait longer than horizon, and that ends the call, as a full
--               concurrency tier does. What was given back goes out again first,
--               but not before floor, the caller's own last booking.
--   u  unbook   generation, then groups of: t, cost. How many can be lent again.
--   l  lease    nothing. Only tells what is held.
--   p  pause    for, ban 0 or 1, once 0 or 1, epoch. 1 if it was longer than what
--               is, and with once, only if nothing came since epoch.
--   q  status   for each tier: used, instant of the next unit, instant when unused,
--               -1: never
--   c  charge   cost. Charges without asking.
-- Reply    now, generation, expiry of the key in ms, epoch, end of the pause (0:
--          none), 1 if that is a ban, and then the op's own

local problem = load()
if problem then return redis.error_reply('THROTTLE ' .. problem) end

local concurrent, capacity = false, {} -- capacity: the largest cost of each tier
for t = 5 + plan[3], #plan, 6 do
  concurrent = concurrent or plan[t] == CONCURRENCY
  capacity[#capacity + 1] = isBucket(plan[t]) and plan[t + 4] or plan[t + 2]
end
if concurrent and not syncLeases(now) then
  return redis.error_reply('THROTTLE stale call: a later one has come before')
end

local reply = {0, 0, 0, 0, 0, 0}
local news -- what the fleet is told
local function say(...)
  for i = 1, select('#', ...) do reply[#reply + 1] = (select(i, ...)) end
end

local function tooLarge(cost)
  for i = 1, #rules do
    if cost[unitOf[i]] > capacity[i] then return i end
  end
end

-- A tier of which only a release can help.
local function full(cost)
  for i = 1, #rules do
    local n = cost[unitOf[i]]
    if rules[i].concurrent and n > 0 and rules[i].earliest(now, n) == NEVER then return i end
  end
end

local function reserve()
  local horizon, least = argument(), argument()
  if shut and pause > now then return end
  least = max(least, now, pause)
  drain(max(now, pause))
  advance(max(now, pause))
  local booked = false
  while cursor <= #ARGV do
    local requests, within = argument(), argument()
    local cost = amounts()
    local impossible = tooLarge(cost)
    for _ = 1, requests do
      local waiting = not impossible and concurrent and full(cost)
      if waiting then
        starving = true
        return say(waiting, -1)
      elseif impossible then
        say(impossible, -1)
      else
        local lent, at, tier = find(least, cost), nil, -1
        if lent then at = pool[lent][1] else at, tier = earliest(cost) end
        if at > LATEST then
          say(tier, -1)
        elseif within >= 0 and at - now > within then
          say(tier, at)
        elseif booked and at - now > horizon then
          return say(tier, at)
        else
          if lent then table.remove(pool, lent) else charge(at, cost) end
          if concurrent then hold(cost) end
          booked = true
          say(0, at)
        end
      end
    end
  end
end

local function unbook()
  local of, taken = argument(), 0
  drain(max(now, pause))
  while cursor <= #ARGV do
    local at, cost = argument(), amounts()
    if of == generation and at > now and at >= pause and #pool < POOL then
      giveBack(at, cost)
      taken = taken + 1
    end
  end
  say(taken)
end

local function hush()
  local length, ban, once, of = argument(), argument(), argument(), argument()
  local ends = min(now + length, LATEST)
  if once == 1 and of ~= epoch or ends <= max(now, pause) then return say(0) end
  pause, shut, epoch = ends, ban == 1, (epoch + 1) % 2 ^ 32
  news = concat({'pause', text(ends - now), text(ban), text(epoch)}, ' ')
  say(1)
end

-- To know when the tiers are unused, lands all that is on its way, which is not saved.
local function status(finish)
  local at, used, next = advance(now), {}, {}
  for i = 1, #rules do
    local rule = rules[i]
    used[i] = rule.used(at) + (rule.concurrent and 0 or aloft[unitOf[i]])
    next[i] = rule.earliest(at, 1)
  end
  finish()
  local last = slots.first <= slots.last and slots[record(slots, slots.last) + 1] or at
  advance(last)
  for i = 1, #rules do
    local fresh = used[i] > 0 and max(last, rules[i].fresh(last)) or at
    say(used[i], next[i] < NEVER and next[i] or -1, fresh < NEVER and fresh or -1)
  end
end

local function finish()
  local ttl = 1000 + floor((expires() - now + 999) / 1000)
  save(ttl)
  if freed then news = 'freed' end
  if news then redis.pcall('PUBLISH', key, news) end -- a user who may not is not to fail
  local paused = pause > now
  reply[1], reply[2], reply[3], reply[4] = now, generation, ttl, epoch
  reply[5], reply[6] = paused and pause or 0, paused and shut and 1 or 0
end

if op == 'q' then
  status(finish)
else
  if op == 'r' then reserve()
  elseif op == 'u' then unbook()
  elseif op == 'p' then hush()
  elseif op == 'c' then charge(now, amounts())
  end
  finish()
end
return reply
