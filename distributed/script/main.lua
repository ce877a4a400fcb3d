-- throttle: one quota of a fleet, decided in one call.
--
-- It answers as algorithms.Ledger does, of which it is the twin, with bookings
-- ahead of time: a booking is Earliest, then Charge at the instant it returned, and
-- the next is behind it: first in, first out.
--
-- keys[1]  the quota: a string, see state.lua; also the channel on which the fleet
--          is told of a pause, "pause <for> <ban> <epoch>", of its early end, "resume <epoch>",
--          or of the end of the wait for a probe, "freed"
-- keys[2], keys[3]  only with a concurrency tier or estimates: what processes hold, see lease.lua; of j,
--          the quotas around that of the first key
-- argv     whole numbers, instants and lengths in µs
--   op     r, b, j, u, x, l, p, e, o, q or c, see below
--   plan   one text: guard, grain (what lands within 2^grain µs lands together), U units, K tiers,
--          U hashes of the units' names, and for each tier: algorithm, unit from 0,
--          limit, window, burst (of a calendar: more than any period takes), extra (precision,
--          phase, or a hash of period and zone)
--   starts only with calendar tiers: for each, when five periods begin, see calendar.lua
--   lease  only with a concurrency tier or estimates: owner, seq, length, 1 if callers of its
--          wait, U amounts held now, and with estimates U amounts settled since the last call
--   op's own, where a cost is U amounts:
--   r  reserve  ahead, floor, the guard of these requests (0: the plan's), how long the reply
--               takes, what the caller knows now to be at least, then groups of: count, within (-1: no bound, -2: only asked), cost; or of -count, within, headroom,
--               soon, turn, cost for requests that yield: they leave so many percent of every
--               tier's capacity, and are booked so little ahead of time; turn is the instant at
--               which the caller was told last to ask for them, or 0, see turn.lua. Before a
--               group may stand 0 and an instant, up to MOST_AHEAD from now: it and the next are not
--               sent before that, and land so much later. Answers runs of
--               what, t and count: so many requests are booked at t, of which the first is
--               the n-th of that instant if what is -1-n (one that was given back: as the
--               first), the next the one after, and so on. What is 0, t, count, part, limit,
--               step, rest: so many are booked evenly, see pace.lua. Otherwise so many are not booked:
--               i > 0: tier i would be ready at t, or -1: never; -1: what was booked
--               before, or a pause, decides. What would wait longer than within is
--               not booked. The first that has to wait is booked any time ahead, with
--               it no more than ahead of them: the next ends the call, as a full
--               concurrency tier does, and what yields and can't go soon. What was given
--               back goes out again first, but not before floor, the caller's own last
--               booking, not to what yields, nor to what has a longer guard.
--               With calendar tiers there are four numbers more for each: from and to how
--               many percent it has come, if it has, units used, and its end as Unix time;
--               and t may be the end of what is known, if it is later.
--               Behind a pause nothing is reserved before the last SOON of it. The first
--               behind a pause with a probe is that probe, and so is the first after a reset that a
--               tier refuses, see reading.lua; and the last of its call: then
--               the pause lasts for PROBE beyond the latest instant at which it may be sent.
--   b  reserve  how many tiers are budgets, which they are, and then as r. What they have
--               no room for is not booked: i is the first of them then.
--   j  joint    how long the reply takes, the guard of these requests (0: the plan's) and what the caller
--               knows the clock to show at least, for each other key the plan and these two of the quota that is kept there, from the inside outward,
--               then ahead and soon as above, for how many a turn is, the instant of the one that the
--               caller was told last, or 0, and for how many that was, and groups of: count, or -count for requests that yield, within,
--               headroom, cost, and the cost in each other quota. None of them may have leases,
--               budgets or calendars. Answers in how long the outermost is ready where a turn
--               is told, or -1, for how many that is, 0 if it is the one that was told before, or -1 if the caller
--               had better ask one quota after the other, since others do, the first eight numbers of a reply for each other key, and then runs as r
--               does, but for even ones. Tiers are counted through all quotas. See joint.lua.
--   u  unbook   generation, how far TIME had been set back since that began when these requests
--               were booked, their guard (0: the plan's), then groups of: t, cost. What is booked
--               for later is taken off the end, see tail.lua, or can be lent, but not with
--               estimates, nor in a pause or before a probe, nor if TIME was set back since;
--               anything else is canceled. Answers how many of them.
--   x  cancel   as u, but nothing is lent: it was decided under another plan.
--   l  lease    nothing. Only tells what is held, and answers the four numbers of
--               calendar tiers.
--   p  pause    for, ban 0 or 1, once, epoch, probe 0 or 1, and of a back-off two numbers more:
--               it lasts for, doubled once for each one since a request passed, but no
--               longer than the first of them, and the first lasts no time if the second is 1. Answers 1 if it lasts
--               longer than what is; with once 1, only if nothing came since epoch; with
--               once 2, only if this state is from before epoch, and then it has that:
--               a state that was lost is told what it has forgotten. The rest of
--               a pause that is longer than a ban is a pause. With probe, one request goes first when it ends.
--   e  end      epoch, how, for. 0 ends a pause, a ban and the wait for a probe, up to that of
--               the epoch and whatever the state's. The others are about the probe of the epoch, if that is waited for: 1,
--               its response is in, and ends the wait; 2, it will get none, and the next
--               request is a probe; 3, nothing will tell, and the wait is all; 4, its process
--               lives and waits, so that the wait lasts so long from now at least; 5, as 1,
--               and in any case the response to a request of the epoch was no refusal, which ends the row of
--               back-offs; 6, as 2, of one that was never sent. Where a response is to come that reports whether a count
--               has ended, the wait goes on for REPORT after 1 and 5. Answers 1 if that probe was waited for.
--   o  observe  for how long the request was in flight at most whose response it was (0: the plan's guard), then groups of: tier from 1, units that its provider counts, instant at which
--               the request was admitted whose response says so, what that cost of the
--               tier's unit, 1 if it is exact, how long until the count ends at the latest,
--               or 0, and by how much sooner it may end.
--   q  status   Answers for each tier: used, instant of the next unit, instant when
--               unused; -1: never.
--   c  charge   for each tier an amount that its provider has counted already.
-- Reply    now, generation, expiry of the key in ms, epoch, end of the ban, or else of the
--          pause (0: none), 1 if that is a ban, 2 if what the call has reserved is the probe, and
--          4 for each back-off in a row, TIME,
--          now when this state was written before (0: never), and then the op's own
--
-- The epoch grows with every pause and every early end of one. It is no less than the seconds
-- of Unix time then, so that of two states, one of which is lost, the later event is known.
--
-- Nothing is written before all has been decided: an error leaves all as it was.

-- Turns to a key and a plan: reads its state, and takes note of what the caller holds. All
-- that a run works with is set anew. Answers what is wrong, if anything.
local function turnTo(name, words)
  key = name
  adopt(planOf(words))
  local problem, old = readState()
  if old and old.lasts then -- of this plan with what is kept for others
    adopt(planOf(old.words, old.plan))
    problem, old = readState()
  end
  if problem then return problem end
  lease, wants, columns, inline = nil, nil, nil, nil
  if old then convert(words, old) end
  problem = loadTiers()
  if not problem and (plan.concurrent or estimates) then
    if not places.renew then defineLeases() end
    problem = places.renew()
  end
  if problem then return problem end
  probe, probing, held, news, level = flags % 8 >= 4, flags % 16 >= 8 and pause > now, max(now, pause), nil, (divMod(flags, 16))
  -- What was given back before TIME was set back is of instants that have another meaning now.
  while pool[1] and (setBack or pool[1][1] < held) do table.remove(pool, 1) end
  reply, crossing, isProbe, sent = {now, generation, 0, 0, 0, 0, wall, written}, nil, false, now
end

-- Runs an operation on the key.
local function decide(op)
  if trail then trail.commit(op ~= 'r' and op ~= 'b' and op ~= 'q' and op ~= 'u') end
  if trail and op ~= 'u' then trail.look() end
  if not ops[op] then defineOp(op) end
  if ops[op] then ops[op](op) end
  if trail and op == 'u' then trail.look() end
  if op == 'l' then crossing = true end
  if crossing == nil then return end
  local n = #reply
  for i = 1, #calendars do
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], n = 0, 0, 0, 0, n + 4
    if crossing then reply[n - 3], reply[n - 2], reply[n - 1], reply[n] = calendars[i].crossed(frontier) end
  end
end

local together -- what works with several quotas, once that is asked for

function jointly()
  together = together or defineJoint(turnTo)
  return together
end

-- Does one call. It is the library's, see script.go.
function run(keys, argv)
  if not call then bind() end
  local clock = call('TIME')
  wall = clock[1] * 1000000 + clock[2]
  arguments, cursor = argv, 3
  recordsKey, orderKey = keys[2], keys[3]
  local op = argv[1]
  local problem = turnTo(keys[1], argv[2]) or op == 'j' and jointly().begin(keys)
  if problem then return redis.error_reply('THROTTLE ' .. problem) end
  decide(op)
  save()
  if op == 'j' then together.finish() end
  if op == 'q' then whenUnused() end
  if tointeger then -- Lua 5.4 tells 3.0 from 3, and a server may answer so
    for i = 1, #reply do reply[i] = tointeger(reply[i]) end
  end
  return reply
end
