-- main.lua: one call on one quota of a fleet.
-- Twin: algorithms.Ledger, with reservations.
-- Uses: calendar.lua, call.lua, convert.lua, flight.lua, lease.lua, need.lua, pack.lua, pause.lua,
-- plan.lua, pool.lua, queue.lua, save.lua, state.lua, status.lua, tail.lua, tiers.lua.
-- Gives: run, and bundled for bundle.lua.
-- Sets: arguments, crossing, cursor, inline, isProbe, key, lease, level, news, notBefore,
-- orderKey, pool, probe, probing, recordsKey, reply, sendFrom, wall.
--
-- A reservation is Earliest, and then Charge at the instant that Earliest returned. The next
-- reservation is behind it: first in, first out.
--
-- keys[1]  the quota: a string, see state.lua. It is also the name of the channel on which the
--          fleet receives a pause, "pause <for> <ban> <epoch>", its early end, "resume <epoch>",
--          the end of the wait for a probe, "freed", and that tiers follow named limits, "follow"
-- keys[2], keys[3]  only with a concurrency tier or estimates: the leases of processes, see
--          lease.lua. Of a bundle, the keys of the quotas around the first follow, each with its own two
-- argv     whole numbers, instants and lengths in µs
--   op     the name of an operation, see below
--   plan   one text: guard, resolution (requests that land in the same 2^resolution µs land
--          together), U units,
--          K tiers, U hashes of the units' names, and for each tier: algorithm, unit from 0,
--          limit, window, burst (of a calendar: longer than any period; of windows of unknown
--          phase: 1), extra (precision, phase, a hash of period and zone, or the bounds of a learned rate: least ×
--          2^24 + most)
--   starts only with calendar tiers: for each, the beginnings of five periods, see calendar.lua
--   lease  only with a concurrency tier or estimates: owner, seq, length, 1 if the caller has
--          waiters, until when it knows the state, as generation + now, or 0, U amounts held now, and with estimates a number
--          of settlements, and for each the seq of the first call that contained it, and U amounts: those
--          of calls that the state has seen change nothing
--
-- The operations:
--   reserve    reserves requests, each behind the decisions before it
--   budget     as reserve, for a plan with budgets
--   bundle     reserves the same times in several quotas
--   cancel     returns reservations, which other requests may take over
--   refund     takes back requests that were not sent
--   refund_old  the same for requests under another plan
--   lease      reports the held amounts
--   pause      pauses the fleet
--   end_pause  ends a pause, or the wait for a probe
--   observe    compares the counts that a response reports with the quota's own
--   status     reports the use of each tier
--   count      charges what the provider has counted already
--   forget     makes the learned tiers start again
--   leave      gives back a turn
--
-- The arguments of each operation, where a cost is U amounts:
--   reserve     how long a turn is, how many requests the calls before it in the round trip reserve,
--               floor, the guard of these requests (0: the plan's), how long the reply takes, the
--               earliest time that the clock may show by the caller's estimate, slack, and then groups of: count, within (-1: no bound, -2: dry run), cost; or of -count, within,
--               headroom, soon, turn, cost for requests that yield. These leave headroom percent
--               of every tier's capacity free, and are reserved at most soon ahead; turn is the
--               instant at which to ask for them in the last reply, or 0, see turn.lua, and
--               negative if an earlier group of the round trip has it too. A 0 and an
--               instant, up to MOST_AHEAD from now, may stand before a group: this group and the
--               following ones are not sent before the instant, and land so much later.
--               A 0, -1 - place and length may stand before the first group: the caller takes part in
--               the line, see line.lua, with the turn of its last reply, or with -1 and 0 if it had none.
--               Its reply begins with its turn from then on, or two zeros, and t of the first request that
--               goes later than soon is when it should go, behind the turns of others. A dry run, and a
--               request that does not wait, leave the turn as it is.
--               Replies runs of what, t and count. If what is less than -1, count requests are
--               reserved at t: the first is the n-th request of that instant if what is -1-n (a
--               returned reservation counts as the first), the next one the n+1-th, and so on. If
--               what is less than -2^32, one request takes over a returned reservation at t, whose
--               guard is shorter by -2^32-what: the request must be sent so much sooner. If
--               what is 0, the run is t, count, part, limit, step, rest: count requests are
--               reserved evenly, see pace.lua. Otherwise count requests are not reserved. If what
--               is i > 0, tier i would be ready at t, or never if t is -1. If what is -1, earlier
--               reservations or a pause decide.
--               A request that would wait for longer than within is not reserved. The first
--               request that has to wait is reserved if it goes soon (without the line: up to 90 s
--               behind all others or two requests of the slowest tier), and with it those that come
--               within a turn behind it: of one instant as many as the tier that decides admits in a
--               turn. The next request ends the call. So do a full concurrency tier, and
--               a request that yields and can't go soon. Returned reservations are used first, but
--               not before floor, the caller's own last reservation, not for requests that yield,
--               and not for requests with a guard that is longer by more than slack, or less of it
--               for a time to come, see pool.lua. While releases with other plans call, too,
--               requests are reserved only if they go when the reply arrives. Then requests that do
--               not yield have turns, too: their group is -count, within, headroom, -soon, turn, cost.
--               With calendar tiers, four more numbers follow for each: the percentages from and
--               to which it has come, or zeros, the units used, and its end as Unix time; and t
--               may be the end of the known periods instead of a later instant.
--               During a pause, requests are reserved only in its last SOON. The first request
--               after a pause with a probe is the probe, and so is the first one after a reset that
--               a tier refuses, see reading.lua. A probe is the last request of its call: the pause
--               then lasts for PROBE beyond the latest instant at which it may be sent.
--   budget      the number of budget tiers, their indexes, and then as reserve. A request that
--               exceeds budgets is not reserved, and i is the first of these budgets.
--   bundle      how long the reply takes; the guard of these requests (0: the plan's), the earliest
--               time that the clock may show, the headroom of requests that yield, the number of budget
--               tiers and their indexes; for each quota around, from the inside outward, its plan, starts
--               and lease, and again these; how long a turn is, and
--               soon as above; the instant of the caller's last turn or 0, and the number of requests
--               it was for; and then groups of: count, or -count for
--               requests that yield, within, cost, and the cost in each quota around.
--               Replies how long until the outermost quota alone admits the request, if the reply
--               has a turn, or otherwise -1; the number of requests that the turn is for, which is
--               0 if it is the caller's last turn, and -1 if the caller should ask one quota after
--               the other, because other processes do; the first eight numbers of a reply for each
--               quota around; runs as reserve does, except even ones; and the four numbers of each
--               calendar tier. Tiers are numbered through all quotas. See bundle.lua.
--   cancel      generation, how far TIME had been set back since its beginning when these requests
--               were reserved, their guard (0: the plan's), then groups of: t, cost. A future
--               reservation is taken off the end, see tail.lua, or goes to the pool; but not with
--               estimates, during a pause, before a probe, or if TIME was set back since. Any
--               other is refunded. Replies the number of canceled requests.
--               A refund takes the request out of the tail or of those in flight, or out of the tiers if it
--               has landed.
--   refund      as cancel, but without the pool.
--   refund_old  as refund, but what has landed stays charged.
--   lease       no arguments. Replies the four numbers of calendar tiers.
--   pause       for, ban 0 or 1, once, epoch, probe 0 or 1, and for a back-off two more numbers:
--               its length is for, doubled once for each back-off since a request passed, at most
--               the first number; the first back-off has no length if the second number is 1. A first
--               number of 0 is no back-off. For learned tiers follow the instant at which the refused request
--               was admitted, and its cost, zero in units that the refusal is not about. If all of
--               them tolerate the refusal, a back-off is void.
--               Replies 1 if the pause applies, because it ends later than the present one. With
--               once 1, it applies only without an event since epoch. With once 2, it applies only
--               if this state is from before epoch, and sets epoch: it restores a pause in a state
--               that has lost it. The part of a pause beyond the end of a ban is a pause. With
--               probe, one request goes first when the pause ends.
--   end_pause   epoch, how, for. With 0, ends any pause, ban and wait for a probe, up to the given
--               epoch and the state's. The others concern the probe of the epoch while the fleet
--               waits for it: 1, the response is in, and the wait ends; 2, there will be no
--               response, and the next request is a probe; 3, no process will report the response,
--               and the others follow when the wait ends; 4, the process of the probe lives, and
--               the wait lasts for at least for from now; 5, as 1, and in any case a request of
--               the epoch was not refused, which resets the back-offs; 6, as 2, for a probe that
--               was never sent. If the response to a probe after a reset is outstanding, the wait
--               goes on for REPORT after 1 and 5. Replies 1 if the fleet was waiting for that
--               probe.
--   observe     the longest time in flight of the request with the response (0: the plan's guard),
--               then groups of: tier from 1, units that its provider counts, instant at which the
--               request was admitted, its cost in the tier's unit, 1 if the reading is
--               authoritative, how long until the count ends at the latest, or 0, and by how much
--               sooner it may end.
--   status      no arguments. Replies for each tier: used, instant of the next unit, instant when
--               unused; -1: never. The words of the learned tiers follow.
--   count       for each tier, the amount.
--   forget      no arguments.
--   leave       the turn, and the number of requests it is for, or 0 for requests that yield; or the
--               place in the line and minus the length of the turn.
-- Reply    now, generation, the least expiry of the key in ms, epoch, end of the ban, or otherwise of the
--          pause (0: none), the sum of 1 for a ban, 2 if the call has reserved the probe, 4 if releases
--          with other plans call, too, and 8 for each back-off in a row, TIME, now when this state was written before (0: never), and
--          then the operation's own numbers
--
-- The epoch grows with every pause and every early end of one. It is no less than the seconds
-- of Unix time at that event. So of two states, one of which was lost, the later event is known.
--
-- A call decides everything before it writes: an error leaves the state as it was.

-- Reads the state of a key under a plan, and records the caller's held amounts. It sets all locals
-- of a call. Returns the problem, if there is one.
local function turnTo(name, words)
  key = name
  adopt(planOf(words))
  local problem, old = readState()
  if old and isLater(old.plan, plan) then
    return format('follow %.0f %s%s %s', old.plan.namedAt, old.plan.policy, old.plan.named, name)
  end
  if old and old.matches then -- this plan with guest tiers
    adopt(planOf(old.words, old.plan))
    problem, old = readState()
  end
  if problem then return problem end
  lease, inline = nil, nil
  local later = old and convert(words, old)
  problem = loadTiers()
  if not problem and (plan.concurrent or estimates) then
    if not places.renew then defineLeases() end
    problem = places.renew()
  elseif not problem and leases[1] then
    defineEstimates()
    places.keepSums()
  end
  if problem then return problem end
  probe, probing, notBefore, news, level = flags % 8 >= 4, flags % 16 >= 8 and pause > now, max(now, pause), later and 'follow' or nil, (divMod(flags, 16))
  -- After TIME was set back, the instants of returned reservations have another meaning.
  if setBack then pool = {} end
  reply, crossing, isProbe, sendFrom = {now, generation, 0, 0, 0, 0, wall, written}, nil, false, now
end

-- Appends the crossings of calendars to the reply.
local function addCrossings()
  local n = #reply
  for i = 1, crossing ~= nil and #calendars or 0 do
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], n = 0, 0, 0, 0, n + 4
    if crossing then reply[n - 3], reply[n - 2], reply[n - 1], reply[n] = calendars[i].crossed(frontier) end
  end
end

-- Runs an operation on the key.
local function decide(op)
  local takesBack = op == 'cancel' or op == 'refund' or op == 'refund_old'
  if tail then tail.commit(op ~= 'reserve' and op ~= 'budget' and op ~= 'status' and not takesBack and op ~= 'leave') end
  if pool[1] then dropPooled(notBefore) end
  if tail and not takesBack then tail.chargeRuns() end
  if not ops[op] then defineOp(op) end
  ops[op](op)
  if tail and takesBack then tail.chargeRuns() end
  addCrossings()
end

local bundle -- the functions of bundle.lua, once a call needs them

function bundled()
  bundle = bundle or defineBundle(turnTo, addCrossings)
  return bundle
end

-- Runs one call. script.go declares it.
function run(keys, argv)
  if not call then bind() end
  local clock = call('TIME')
  wall = clock[1] * 1000000 + clock[2]
  arguments, cursor = argv, 3
  recordsKey, orderKey = keys[2], keys[3]
  local op = argv[1]
  local problem = turnTo(keys[1], argv[2]) or op == 'bundle' and bundled().bundle.begin(keys)
  if problem then return redis.error_reply('THROTTLE ' .. problem) end
  decide(op)
  save()
  if op == 'bundle' then bundle.bundle.finish() end
  if op == 'status' then whenUnused() end
  if tointeger then -- servers with Lua 5.4 would reply 3.0 for 3
    for i = 1, #reply do reply[i] = tointeger(reply[i]) end
  end
  return reply
end
