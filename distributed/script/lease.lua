-- lease.lua: the leases of each process (owner): the units that it holds of concurrency tiers, and
-- its estimates that are not settled. Units: µs. Go: leases.go.
-- Uses: call.lua, state.lua, flight.lua, places. Gives: recordsKey, orderKey, leases, lease, wants,
-- isFirst, columns, inline, and in places: keep, leave, renew, gateOf, othersWait, fullFor, hold,
-- stand, save.
--
-- A process reports its amounts with every call, numbered by seq. They count for the length of its
-- lease. When the lease of a dead process ends, its permits are free, and its estimates count as
-- the cost of its requests.
--
-- A call reads only the caller's record, and the records that are due. The state keeps the sums,
-- and two more keys the records:
--
--   keys[2]  a hash: the record of each owner; and m, the mark of the state that it belongs to
--   keys[3]  a sorted set: each owner by when its record is due, and w<owner> by its place in the
--            line, processes that yield behind all others
--
-- A process whose callers wait for a place stands in the line. If there is room for the first
-- process, a place is kept for it for a while, and only that process receives a message, on a
-- channel of its own.

local MOST_DUE = 512 -- the most records that a call reads besides the caller's
local LINGER = 10000 -- how many ms later than the state the keys of leases expire, at most
local KEPT = 1000000 -- how long a place is kept for a process
local YIELDING = 2 ^ 50 -- added to the place in the line of processes that yield
local LINE_ENDS = 2 ^ 51 -- added to instants in keys[3]

local recordsKey, orderKey
local leases -- the mark, the number of processes in the line, the latest expiry, an instant no later than the first due record, when
-- the keys expire, and by unit the open amount; or none
local owner -- the caller, as text
local lease -- the caller's record: seq, expiry, when it is due, place in the line (when it came) or 0, until when a
-- place is kept for it or 0, 1 plus its headroom if it yields or 0, by unit the held amounts and
-- the awaited ones
local waits -- whether the caller has waiters
local wants -- the cost that found no place, its headroom and whether it yields
local isFirst -- whether a place was kept for the caller
local stood -- whether the caller stood in the line
local othersInLine -- whether others stand in the line: before a caller that yields, and before one that does not
local isNew -- whether the written leases belong to an earlier state
local gone, due -- owners whose lease has ended; records that become due later, by owner
local columns -- for a state of another plan, by unit the column in the records; nil if the columns stay
local inline -- records of an earlier format

-- The record in some bytes, nil if there are none.
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

-- Adds the place that is kept for a process to the open amounts, or subtracts it. Returns the sum
-- of its amounts.
function places.keep(l, sign)
  local sum = 0
  for u = 1, units do
    local n = plan.limited[u] and l[6 + units + u] or 0
    open[u], sum = open[u] + sign * n, sum + n
  end
  return sum
end

-- Takes the caller out of the line, and gives up the place that is kept for it.
function places.leave()
  if lease[5] > 0 then places.keep(lease, -1) end
  if lease[4] > 0 then leases[2] = leases[2] - 1 end
  lease[4], lease[5] = 0, 0
end

-- Reads the sums and the caller's record. It drops those of a lost state.
local function readLeases()
  open, gone, due = {}, {}, {}
  local bytes = call('HMGET', recordsKey, 'm', owner)
  local sums = not inline and leases[1] or {0}
  isNew = bytes[1] ~= pack('>I7', sums[1])
  leases = isNew and {wall, 0, 0, NEVER, 0} or sums
  if not isNew then lease = recordOf(bytes[2]) end
  for u = 1, units do open[u] = leases[SUMS + u] or 0 end
end

-- Reads the records that are due. Returns, by unit, the amounts of owners whose lease has ended.
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

-- Records the caller's amounts. Returns the problem, if there is one.
function places.renew()
  owner, cursor = arguments[cursor], cursor + 1
  local seq, expiry = argument(), now + argument()
  waits, wants, isFirst, othersInLine, lease = argument() == 1, nil, false, {}, nil
  readLeases()
  local settled = (leases[4] <= now or inline) and expire() or {} -- by unit, the reported and the expired amounts
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

-- The tier for which requests of a cost stand in the line, if there is one.
function places.gateOf(cost)
  for i = 1, plan.deciding do
    local u = unitOf[i]
    if cost[u] > 0 and (rules[i].concurrent or estimated[u]) then return i end
  end
end

-- Whether other processes stand in the line before the caller.
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

-- The first concurrency tier without room for a cost, if there is one.
function places.fullFor(cost, spare)
  for i = 1, plan.deciding do
    local n = rules[i].concurrent and cost[unitOf[i]] or 0
    if n > 0 and rules[i].earliest(now, n + spare[i]) == NEVER then return i end
  end
end

-- Adds grants to the caller's held amounts.
function places.hold(cost, count)
  for u = 1, units do
    local n = count * cost[u]
    lease[6 + u], open[u] = lease[6 + u] + n, open[u] + n
    if estimated[u] then aloft[u] = aloft[u] + n end
  end
end

-- Puts the caller at the end of the line if it waits for a place and does not stand in the line
-- yet.
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

-- Writes when a record is due, if that is earlier than before.
local function lookBy(name, l, at)
  if at < l[3] then
    l[3], leases[4] = at, min(leases[4], at)
    call('ZADD', orderKey, text(LINE_ENDS + at), name)
  end
end

-- Keeps free places for the first processes in the line, and sends them a message.
local function wake()
  while leases[2] > 0 do
    local line = call('ZRANGEBYSCORE', orderKey, '0', '(' .. text(LINE_ENDS), 'LIMIT', '0', '2')
    local first = line[2]
    if line[1] ~= 'm' or not first then -- the key is lost, so leases begin anew with the next call
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
    redis.pcall('PUBLISH', recordsKey .. ':' .. name, 'freed') -- pcall: a user without the right to publish must not fail
    if kept == 0 then return end -- the next process follows when this one has asked
  end
end

-- Writes the changed records, and wakes the processes that can go.
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
