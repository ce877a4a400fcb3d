-- lease.lua: what each process (owner) holds of the concurrency tiers, and what it has
-- estimated and not settled yet. It tells so with every call, numbered by seq, and is
-- believed for the length of its lease: a process that dies frees its places, and its
-- estimates are taken for what its requests cost. Units: µs.
--
-- A call looks at the caller's record only, and at those that are due. The state keeps the sums,
-- and two more keys the records:
--
--   keys[2]  a hash: the record of each owner; and m, the mark of the state that it belongs to
--   keys[3]  a sorted set: each owner by when its record is to be looked at, and w<owner> by its
--            place in the line, those that yield behind all others
--
-- A process with callers that wait for a place stands in the line. Where there is room for the
-- first, that is kept for it for a while, and it alone is told, on a channel of its own.

local MOST_DUE = 512 -- records that a call looks at beside the caller's
local LINGER = 10000 -- how many ms later than the state the keys of leases expire, at most
local KEPT = 1000000 -- for how long a place is kept for a process that was told of it
local YIELDING = 2 ^ 50 -- is added to the place in the line of those that yield
local LINE_ENDS = 2 ^ 51 -- is added to instants

local recordsKey, orderKey
local leases -- the mark, how many stand in the line, the latest expiry, when the first record is due or before, when
-- the keys expire, and how much is open of each unit; or none
local owner -- the caller, as text
local lease -- its record: seq, expiry, when it is to be looked at, place in the line (when it came) or 0, until when a
-- place is kept for it or 0, 1 and its headroom if it yields or 0, what it holds of each unit, what it waits for
local waits -- whether any of its callers wait
local wants -- the cost for which there was no place, its headroom and whether it yields
local isFirst -- a place was kept for the caller
local stood -- it stood in the line
local othersInLine -- whether others stand in the line: before those that yield, and before users
local isNew -- nothing that was written of leases is of this state
local gone, due -- owners whose lease has ended; records that are to be looked at later, by owner
local columns -- of the records, for each unit that was of another plan before; nil if all stay as they are
local inline -- records of a format before

-- The record that some bytes are, nil if there are none.
local function recordOf(bytes)
  if not bytes then return nil end
  if not columns then return {parse(sevens(6 + 2 * units), bytes, 1)} end
  local old = {parse(sevens(6 + 2 * columns.count), bytes, 1)}
  local new = {spread(old, 1, 6)}
  for u = 1, units do
    local o = columns[u]
    new[6 + u], new[6 + units + u] = o and old[6 + o] or 0, o and old[6 + columns.count + o] or 0
  end
  return new
end

-- Counts what is kept for a process as open, or no longer. Answers how much that is.
function places.keep(l, sign)
  local sum = 0
  for u = 1, units do
    local n = plan.limited[u] and l[6 + units + u] or 0
    open[u], sum = open[u] + sign * n, sum + n
  end
  return sum
end

-- Takes the caller out of the line, or from what is kept for it.
function places.leave()
  if lease[5] > 0 then places.keep(lease, -1) end
  if lease[4] > 0 then leases[2] = leases[2] - 1 end
  lease[4], lease[5] = 0, 0
end

-- Reads the sums and the caller's record. Those of a state that is lost are forgotten.
local function readLeases()
  open, gone, due = {}, {}, {}
  local bytes = call('HMGET', recordsKey, 'm', owner)
  local sums = not inline and leases[1] or {0}
  isNew = bytes[1] ~= pack('>I7', sums[1])
  leases = isNew and {wall, 0, 0, NEVER, 0} or sums
  if not isNew then lease = recordOf(bytes[2]) end
  for u = 1, units do open[u] = leases[SUMS + u] or 0 end
end

-- Looks at the records that are due. Answers what was held of each unit by those whose lease
-- has ended.
local function expire()
  local held = {}
  for u = 1, units do held[u] = 0 end
  local names = isNew and {} or call('ZRANGEBYSCORE', orderKey, text(LINE_ENDS), text(LINE_ENDS + now), 'LIMIT', '0', text(MOST_DUE))
  for _, name in ipairs(names) do
    local l = name == owner and lease or recordOf(call('HGET', recordsKey, name))
    if l[5] > 0 and (l[5] <= now or l[2] <= now) then
      places.keep(l, -1)
      l[5] = 0
    end
    if l[2] > now then
      l[3] = l[5] > 0 and min(l[5], l[2]) or l[2]
      due[name] = l
    else
      gone[#gone + 1] = name
      if l[4] > 0 then leases[2] = leases[2] - 1 end
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
    if not ended then due[name], leases[3] = l, max(leases[3], r[3]) end
  end
  return held
end

-- Takes note of what the caller tells. Answers what is wrong, if anything.
function places.renew()
  owner, cursor = arguments[cursor], cursor + 1
  local seq, expiry = argument(), now + argument()
  waits, wants, isFirst, othersInLine, lease = argument() == 1, nil, false, {}, nil
  readLeases()
  local settled = (leases[4] <= now or inline) and expire() or {} -- of each unit, what was told and what has expired
  if lease and seq <= lease[1] then return 'stale call: a later one has come before it' end
  lease = lease or {0, 0, NEVER, 0, 0, 0}
  stood = lease[4] > 0
  lease[1], lease[2] = seq, expiry
  for u = 1, units do
    local held = u <= plan.told and argument() or 0
    open[u], lease[6 + u], lease[6 + units + u] = open[u] + held - (lease[6 + u] or 0), held, lease[6 + units + u] or 0
  end
  leases[3] = max(leases[3], expiry)
  if not waits then places.leave() end
  if estimates then
    for u = 1, units do
      settled[u] = (settled[u] or 0) + (u <= plan.told and argument() or 0)
      if estimated[u] then aloft[u] = aloft[u] + open[u] end
    end
    advance(now)
    for i = 1, #rules do
      local u = unitOf[i]
      if estimated[u] and settled[u] > 0 then land(i, frontier, settled[u]) end
    end
  end
end

-- The tier for which requests of a cost stand in the line, if any.
function places.gateOf(cost)
  for i = 1, plan.deciding do
    local u = unitOf[i]
    if cost[u] > 0 and (rules[i].concurrent or estimated[u]) then return i end
  end
end

-- Whether others stand in the line before a caller that yields, or not.
function places.othersWait(yields)
  if isFirst or leases[2] == (lease[4] > 0 and 1 or 0) then return false end
  local known = yields and 1 or 2
  if othersInLine[known] == nil then
    othersInLine[known] = false
    local left = {}
    for i = 1, #gone do left['w' .. gone[i]] = true end
    left['w' .. owner] = true
    for _, name in ipairs(call('ZRANGEBYSCORE', orderKey, '1', '(' .. text(yields and LINE_ENDS or YIELDING), 'LIMIT', '0', text(2 + #gone))) do
      if not left[name] then othersInLine[known] = true end
    end
  end
  return othersInLine[known]
end

-- The first tier that limits what is open and has no room for a cost, if any.
function places.fullFor(cost, spare)
  for i = 1, plan.deciding do
    local n = rules[i].concurrent and cost[unitOf[i]] or 0
    if n > 0 and rules[i].earliest(now, n + spare[i]) == NEVER then return i end
  end
end

-- Adds the caller's grants to what it holds.
function places.hold(cost, count)
  for u = 1, units do
    local n = count * cost[u]
    lease[6 + u], open[u] = lease[6 + u] + n, open[u] + n
    if estimated[u] then aloft[u] = aloft[u] + n end
  end
end

-- Has the caller stand in the line if it waits for a place, at the end if it did not before.
function places.stand()
  if not (wants and waits) then return end
  if lease[4] == 0 then
    leases[2], lease[4] = leases[2] + 1, now + 1
  end
  lease[6] = wants.yields and 1 + wants.headroom or 0
  for u = 1, units do lease[6 + units + u] = wants.cost[u] end
end

-- Writes a record.
local function putRecord(name, l)
  call('HSET', recordsKey, name, pack(sevens(6 + 2 * units), spread(l, 1, 6 + 2 * units)))
end

-- Writes when a record is to be looked at, no later than it was.
local function lookBy(name, l, at)
  if at < l[3] then
    l[3], leases[4] = at, min(leases[4], at)
    call('ZADD', orderKey, text(LINE_ENDS + at), name)
  end
end

-- Keeps what there is room for to those who are first in the line, and tells them.
local function wake()
  while leases[2] > 0 do
    local line = call('ZRANGEBYSCORE', orderKey, '0', '(' .. text(LINE_ENDS), 'LIMIT', '0', '2')
    local first = line[2]
    if line[1] ~= 'm' or not first then -- the key is lost: leases begin anew with the next call
      leases[1] = 0
      return
    end
    local name = sub(first, 2)
    local l = name == owner and lease or recordOf(call('HGET', recordsKey, name))
    local cost = {spread(l, 7 + units, 6 + 2 * units)}
    if places.fullFor(cost, sparing(cost, max(0, l[6] - 1))) or estimates and earliest(cost) > LATEST then return end
    l[4], l[5], leases[2] = 0, now + KEPT, leases[2] - 1
    local kept = places.keep(l, 1)
    call('ZREM', orderKey, first)
    lookBy(name, l, l[5])
    if name ~= owner then putRecord(name, l) end
    redis.pcall('PUBLISH', recordsKey .. ':' .. name, 'freed') -- a user who may not publish is not to fail
    if kept == 0 then return end -- it is the next one's turn when it has asked
  end
end

-- Writes what has changed, and tells those who can go.
function places.save(expiry)
  if isNew then
    call('DEL', recordsKey, orderKey)
    call('HSET', recordsKey, 'm', pack('>I7', leases[1]))
    call('ZADD', orderKey, '0', 'm')
  end
  if columns then
    local all = call('HGETALL', recordsKey)
    for i = 1, #all, 2 do
      if all[i] ~= 'm' then putRecord(all[i], recordOf(all[i + 1])) end
    end
    columns = nil
  end
  for i = 1, #gone do
    call('HDEL', recordsKey, gone[i])
    call('ZREM', orderKey, gone[i], 'w' .. gone[i])
  end
  for name, l in pairs(due) do
    call('ZADD', orderKey, text(LINE_ENDS + l[3]), name)
    if l ~= lease then putRecord(name, l) end
  end
  if leases[4] <= now or inline then
    local name = call('ZRANGEBYSCORE', orderKey, text(LINE_ENDS), text(2 * LINE_ENDS), 'LIMIT', '0', '1')[1]
    local first = name and (due[name] or name == owner and lease or recordOf(call('HGET', recordsKey, name)))
    leases[4] = first and first[3] or NEVER
  end
  lookBy(owner, lease, lease[2])
  if lease[4] > 0 then
    call('ZADD', orderKey, text(lease[4] + (lease[6] > 0 and YIELDING or 0)), 'w' .. owner)
  elseif stood then
    call('ZREM', orderKey, 'w' .. owner)
  end
  wake()
  putRecord(owner, lease)
  for u = 1, units do leases[SUMS + u] = open[u] end
  if leases[5] < now + 1000 * expiry then
    expiry = expiry + LINGER
    leases[5] = now + 1000 * expiry
    call('PEXPIRE', recordsKey, text(expiry))
    call('PEXPIRE', orderKey, text(expiry))
  end
end
