-- lease.lua: the leases of each process (owner): the units that it holds of concurrency tiers, and
-- its estimates that are not settled. Units: µs. Go: leases.go.
-- Uses: call.lua, flight.lua, need.lua, pack.lua, plan.lua, state.lua.
-- Gives: recordsKey, orderKey, leases, lease, inline, and in places:
-- countKept, leave, renew, queueTier, begin, await, fullTier, grantsFrom, hold, finish, save.
-- Sets: cursor, sendFrom.
--
-- A process reports its amounts with every call, numbered by seq. They count for the length of its
-- lease. When the lease of a dead process ends, its permits are free, and its estimates count as
-- the cost of its requests.
--
-- Nobody can renew a lease while nobody can reach the server. So leases end by a clock that advances
-- by a third of a lease at most from one call to the next: a process that lives has called by then.
-- After AWAY leases without a call they end by the time.
--
-- A caller tells how far it knows the state, while the server should still have it. If the state is
-- a later or an older one, or the records are lost, some amounts are unknown. Then no places are
-- granted for a third of a lease, in which each process that lives reports.
--
-- A call reads only the caller's record, and the records that are due. The state keeps the sums,
-- and two more keys the records:
--
--   keys[2]  a hash: the record of each owner; and m, the mark of the state that it belongs to
--   keys[3]  a sorted set: each owner by when its record is due, and w<owner> by its place in the
--            queue of processes, where those that yield are behind all others
--
-- Other releases may estimate a unit that this plan does not. Their open estimates are in flight
-- here, too. A plan without leases has no access to the two keys. It keeps the sums, and leaves the
-- records as they are.
--
-- Records name their units. So releases with other units, or another order of units, read each
-- other's records and need not rewrite them.
--
-- A process whose callers wait for a place is in the queue. If there is room for the first process,
-- a place is kept for it for a while, and only that process receives a message, on a channel of its
-- own: "freed " and the seq of its last call.

local MOST_DUE = 512 -- the most records that a call reads besides the caller's
local LINGER = 10000 -- how many ms later than the longest expiry of the state the keys of leases expire, at most
local AWAY = 12 -- how many leases without a call the records are kept
local KEPT = 1000000 -- how long a place is kept for a process
local YIELDING = 2 ^ 50 -- added to the place in the queue of processes that yield
local QUEUE_ENDS = 2 ^ 51 -- added to instants in keys[3]

-- A record is these numbers, and by unit the held amounts and the awaited ones. Its bytes are these
-- numbers, and for each unit with an amount the hash of its name and the two amounts.
local SEQ = 1
local EXPIRY = 2 -- when the lease ends
local DUE = 3 -- when the record is due
local QUEUED_AT = 4 -- when the process entered the queue, plus 1, or 0
local KEPT_UNTIL = 5 -- until when a place is kept for it, or 0
local YIELDS = 6 -- 1 plus its headroom if it yields, or 0

-- The sums are these numbers, and by unit the open amount:
local MARK = 1
local QUEUED = 2 -- the number of processes in the queue
local LAST_EXPIRY = 3 -- when the last lease ends
local FIRST_DUE = 4 -- an instant no later than the first due record
local KEYS_EXPIRE = 5 -- when the two keys expire
local BEHIND = 6 -- by how much the clock of leases is behind
local LENGTH = 7 -- the length of the lease of the last call
local GRANTS_FROM = 8 -- no places are granted before

local recordsKey, orderKey
local leases -- the sums; until readLeases, a list of them or an empty one
local owner -- the caller, as text
local lease -- the caller's record
local clock -- the clock of leases; the instants of records, and LAST_EXPIRY and FIRST_DUE, are by it
local waits -- whether the caller has waiters
local awaited -- the cost that found no place, its headroom and whether it yields
local keptUntil -- until when a place was kept for the caller, before this call granted any
local hadPlace -- whether that place is still to be granted
local wasQueued -- whether the caller was in the queue
-- Whether others are queued: before a caller that yields, and before one that does not.
local othersQueued
local isNew -- whether the written leases belong to an earlier state
local expired, due -- owners whose lease has ended; records that become due later, by owner
local inline -- records of an earlier format

local function zeros()
  local list = {}
  for u = 1, units do list[u] = 0 end
  return list
end

-- The record in some bytes, nil if there are none.
local function recordOf(bytes)
  if not bytes then return nil end
  local l = {parse('>I7I7I7I7I7I7', bytes, 1)}
  for i = 7, 6 + 2 * units do l[i] = 0 end
  for at = 43, #bytes, 21 do
    local hash, held, awaits = parse('>I7I7I7', bytes, at)
    for u = 1, units do
      if plan[4 + u] % ESTIMATE == hash then l[6 + u], l[6 + units + u] = held, awaits end
    end
  end
  return l
end

-- Adds the place that is kept for a process to the open amounts, or subtracts it. Returns the sum
-- of its amounts.
function places.countKept(l, sign)
  local sum = 0
  for u = 1, units do
    local n = plan.limited[u] and l[6 + units + u] or 0
    open[u], sum = open[u] + sign * n, sum + n
  end
  return sum
end

-- Removes the caller from the queue, and gives up the place that is kept for it.
function places.leave()
  if lease[KEPT_UNTIL] > 0 then places.countKept(lease, -1) end
  if lease[QUEUED_AT] > 0 then leases[QUEUED] = leases[QUEUED] - 1 end
  lease[QUEUED_AT], lease[KEPT_UNTIL] = 0, 0
end

-- Reads the sums and the caller's record. It drops those of a lost state.
local function readLeases()
  expired, due = {}, {}
  local bytes = call('HMGET', recordsKey, 'm', owner)
  local sums = not inline and leases[1] or {0}
  isNew = bytes[1] ~= pack('>I7', sums[MARK])
  leases = isNew and {wall, 0, 0, NEVER, 0, 0, 0, sums[BEHIND] and NEVER or 0} or sums
  clock = now - leases[BEHIND]
  if not isNew then lease = recordOf(bytes[2]) end
  local mixed = plan.estimates
  for u = 1, units do
    open[u] = leases[SUMS + u] or 0
    mixed = mixed or open[u] >= WITH_ESTIMATES
  end
  if not mixed then return end
  defineEstimates()
  places.readEstimates()
end

-- Reads the records that are due. Returns, by unit, the amounts of owners whose lease has ended.
local function expire()
  local held = zeros()
  local names = isNew and {} or call('ZRANGEBYSCORE', orderKey, text(QUEUE_ENDS), text(QUEUE_ENDS + clock), 'LIMIT', '0', text(MOST_DUE))
  if not isNew and call('ZRANGEBYSCORE', orderKey, '0', '0', 'LIMIT', '0', '1')[1] ~= 'm' then leases[MARK] = 0 end -- the key is lost, so leases begin anew with the next call
  for _, name in ipairs(names) do
    local l = name == owner and lease or recordOf(call('HGET', recordsKey, name))
    if l[KEPT_UNTIL] > 0 and (l[KEPT_UNTIL] <= clock or l[EXPIRY] <= clock) then
      places.countKept(l, -1)
      l[KEPT_UNTIL] = 0
    end
    if l[EXPIRY] > clock then
      l[DUE] = l[KEPT_UNTIL] > 0 and min(l[KEPT_UNTIL], l[EXPIRY]) or l[EXPIRY]
      due[name] = l
    else
      expired[#expired + 1] = name
      if l[QUEUED_AT] > 0 then leases[QUEUED] = leases[QUEUED] - 1 end
      if l == lease then lease = nil end
      for u = 1, units do
        held[u], open[u] = held[u] + l[6 + u], open[u] - l[6 + u]
      end
    end
  end
  for _, r in ipairs(inline or {}) do
    local name = text(r[1])
    local l, ended = {r[2], r[3], r[3], 0, 0, 0}, r[3] <= now
    for u = 1, units do
      l[6 + u], l[6 + units + u] = r[3 + u], 0
      if ended then held[u] = held[u] + r[3 + u] else open[u] = open[u] + r[3 + u] end
    end
    if name == owner and not ended then lease = l end
    if not ended then due[name], leases[LAST_EXPIRY] = l, max(leases[LAST_EXPIRY], r[3]) end
  end
  return held
end

-- Grants no places for a while if amounts may be unknown. known is until when the caller knows the
-- state, as TIME at its beginning plus the virtual clock, or 0.
local function keepUntilReported(known, length)
  if leases[GRANTS_FROM] == NEVER or known > generation + written then
    leases[GRANTS_FROM] = now + length
  elseif known > 0 and known < generation then -- this state began after it
    leases[GRANTS_FROM] = max(leases[GRANTS_FROM], length)
  end
end

-- Records the caller's amounts. Returns the problem, if there is one.
function places.renew()
  owner, cursor = arguments[cursor], cursor + 1
  local seq, length = argument(), argument()
  waits, awaited, hadPlace, keptUntil, othersQueued, lease = argument() == 1, nil, false, 0, {}, nil
  readLeases()
  keepUntilReported(argument(), (divMod(length, 3)))
  local expiry, settled = clock + length, (leases[FIRST_DUE] <= clock or inline) and expire() or {} -- by unit, the reported and the expired amounts
  if lease and seq <= lease[SEQ] then return 'stale call: a later one has come before it' end
  lease = lease or {0, 0, NEVER, 0, 0, 0}
  wasQueued = lease[QUEUED_AT] > 0
  local seen = lease[SEQ]
  lease[SEQ], lease[EXPIRY] = seq, expiry
  local ceased -- the caller's estimates of units that its plan has ceased to estimate
  for u = 1, units do
    local held, was = u <= plan.ownUnits and argument() or 0, lease[6 + u] or 0
    if not plan.holds[u] then
      held = 0
      if was > 0 and estimating[u] then
        ceased = ceased or zeros()
        ceased[u] = was
      end
    end
    open[u], lease[6 + u], lease[6 + units + u] = open[u] + held - was, held, lease[6 + units + u] or 0
  end
  leases[LAST_EXPIRY], leases[LENGTH] = max(leases[LAST_EXPIRY], expiry), length
  if not waits then places.leave() end
  if estimating == plan.estimated then return end -- no estimates are open
  for u = 1, units do settled[u] = estimating[u] and settled[u] or 0 end
  for _ = 1, plan.estimates and argument() or 0 do
    local isNews = argument() > seen
    for u = 1, plan.ownUnits do
      local n = argument()
      if isNews and estimated[u] then settled[u] = settled[u] + n end
    end
  end
  places.countEstimates(settled)
  if ceased then
    sendFrom = advance(now)
    if guard > 0 then addInFlight(now, ceased, 1) else places.landAmounts(ceased) end
  end
end

-- The tier for which requests of a cost are queued, if there is one.
function places.queueTier(cost)
  for i = 1, plan.deciding do
    local u = unitOf[i]
    if cost[u] > 0 and (rules[i].concurrent or estimated[u]) then return i end
  end
end

-- When a place may be granted again after the state was lost, NEVER if only a release can help.
function places.grantsFrom() return leases[GRANTS_FROM] > now and leases[GRANTS_FROM] or NEVER end

-- Begins to grant places: the one that is kept for the caller is free for it.
function places.begin()
  keptUntil = lease[KEPT_UNTIL]
  hadPlace = keptUntil > 0
  if hadPlace then places.countKept(lease, -1) end
  lease[KEPT_UNTIL] = 0
end

-- Whether other processes are in the queue before the caller, or places are not granted yet.
local function othersWait(yields)
  if leases[GRANTS_FROM] > now then return true end
  if hadPlace or leases[QUEUED] == (lease[QUEUED_AT] > 0 and 1 or 0) then return false end
  local k = yields and 1 or 2
  if othersQueued[k] == nil then
    othersQueued[k] = false
    local left = {}
    for i = 1, #expired do left['w' .. expired[i]] = true end
    left['w' .. owner] = true
    for _, name in ipairs(call('ZRANGEBYSCORE', orderKey, '1', '(' .. text(yields and QUEUE_ENDS or YIELDING), 'LIMIT', '0', text(2 + #expired))) do
      if not left[name] then othersQueued[k] = true end
    end
  end
  return othersQueued[k]
end

-- The first concurrency tier without room for a cost, if there is one.
local function fullFor(cost, spare)
  for i = 1, plan.deciding do
    local n = rules[i].concurrent and cost[unitOf[i]] or 0
    if n > 0 and rules[i].earliest(now, n + spare[i]) == NEVER then return i end
  end
end

-- Makes a cost the one that the caller waits for.
function places.await(cost, headroom, yields)
  awaited = {cost = cost, headroom = headroom, yields = yields}
end

-- The tier that has no place for a cost, if there is one. The caller then waits for that.
function places.fullTier(cost, spare, headroom, yields)
  local full, queueTier = fullFor(cost, spare), places.queueTier(cost)
  if not full and queueTier and othersWait(yields) then full = queueTier end
  if full then places.await(cost, headroom, yields) end
  return full
end

-- Adds grants to the caller's held amounts.
function places.hold(cost, count)
  hadPlace = false
  for u = 1, units do
    local n = plan.holds[u] and count * cost[u] or 0
    lease[6 + u], open[u] = lease[6 + u] + n, open[u] + n
    if estimated[u] then inFlight[u] = inFlight[u] + n end
  end
end

-- Puts the caller at the end of the queue if it waits for a place and is not queued yet. If it does
-- not wait, and needs no place any more, it leaves the queue.
function places.finish(leaves)
  if not awaited then
    if leaves then
      places.leave()
    elseif keptUntil > 0 then
      lease[KEPT_UNTIL] = keptUntil
      places.countKept(lease, 1)
    end
  end
  if not (awaited and waits) then return end
  if lease[QUEUED_AT] == 0 then
    leases[QUEUED], lease[QUEUED_AT] = leases[QUEUED] + 1, now + 1
  end
  lease[YIELDS] = awaited.yields and 1 + awaited.headroom or 0
  for u = 1, units do lease[6 + units + u] = awaited.cost[u] end
end

-- Writes a record.
local function putRecord(name, l)
  local list, n = {spread(l, 1, 6)}, 6
  for u = 1, units do
    local held, awaits = l[6 + u], l[6 + units + u]
    if held > 0 or awaits > 0 then
      list[n + 1], list[n + 2], list[n + 3], n = plan[4 + u] % ESTIMATE, held, awaits, n + 3
    end
  end
  call('HSET', recordsKey, name, pack(sevens(n), spread(list, 1, n)))
end

-- Makes a record due at an instant, unless it is due earlier.
local function setDue(name, l, at)
  if at < l[DUE] then
    l[DUE], leases[FIRST_DUE] = at, min(leases[FIRST_DUE], at)
    call('ZADD', orderKey, text(QUEUE_ENDS + at), name)
  end
end

-- Keeps free places for the first processes in the queue, and sends them a message.
local function wake()
  while leases[QUEUED] > 0 and leases[GRANTS_FROM] <= now do
    local queued = call('ZRANGEBYSCORE', orderKey, '0', '(' .. text(QUEUE_ENDS), 'LIMIT', '0', '2')
    local first = queued[2]
    if queued[1] ~= 'm' or not first then -- the key is lost, so leases begin anew with the next call
      leases[MARK] = 0
      return
    end
    local name = sub(first, 2)
    local l = name == owner and lease or recordOf(call('HGET', recordsKey, name))
    local cost = {spread(l, 7 + units, 6 + 2 * units)}
    if fullFor(cost, sparing(cost, max(0, l[YIELDS] - 1))) or estimates and earliest(cost) > LATEST then return end
    l[QUEUED_AT], l[KEPT_UNTIL], leases[QUEUED] = 0, clock + KEPT, leases[QUEUED] - 1
    local kept = places.countKept(l, 1)
    call('ZREM', orderKey, first)
    setDue(name, l, l[KEPT_UNTIL])
    if name ~= owner then putRecord(name, l) end
    redis.pcall('PUBLISH', recordsKey .. ':' .. name, 'freed ' .. text(l[SEQ])) -- pcall: a user without the right to publish must not fail
    if kept == 0 then return end -- the next process follows when this one has asked
  end
end

-- Writes the changed records, and wakes the processes that can go.
function places.save(expiry)
  if isNew then
    call('DEL', recordsKey, orderKey)
    call('HSET', recordsKey, 'm', pack('>I7', leases[MARK]))
    call('ZADD', orderKey, '0', 'm')
  end
  for i = 1, #expired do
    call('HDEL', recordsKey, expired[i])
    call('ZREM', orderKey, expired[i], 'w' .. expired[i])
  end
  for name, l in pairs(due) do
    call('ZADD', orderKey, text(QUEUE_ENDS + l[DUE]), name)
    if l ~= lease then putRecord(name, l) end
  end
  if leases[FIRST_DUE] <= clock or inline then
    local name = call('ZRANGEBYSCORE', orderKey, text(QUEUE_ENDS), text(2 * QUEUE_ENDS), 'LIMIT', '0', '1')[1]
    local first = name and (due[name] or name == owner and lease or recordOf(call('HGET', recordsKey, name)))
    leases[FIRST_DUE] = first and first[DUE] or NEVER
  end
  setDue(owner, lease, lease[EXPIRY])
  if lease[QUEUED_AT] > 0 then
    call('ZADD', orderKey, text(lease[QUEUED_AT] + (lease[YIELDS] > 0 and YIELDING or 0)), 'w' .. owner)
  elseif wasQueued then
    call('ZREM', orderKey, 'w' .. owner)
  end
  wake()
  putRecord(owner, lease)
  for u = 1, units do
    leases[SUMS + u] = open[u] + (estimating[u] and open[u] > 0 and WITH_ESTIMATES or 0)
  end
  if leases[KEYS_EXPIRE] < now + 1000 * expiry then
    expiry = expiry + LINGER
    leases[KEYS_EXPIRE] = now + 1000 * expiry
    call('PEXPIRE', recordsKey, text(expiry))
    call('PEXPIRE', orderKey, text(expiry))
  end
end
