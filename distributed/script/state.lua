-- state.lua: reading a quota's state, its clock, and writing it back. Units: µs,
-- expiry ms.
--
-- Nothing is written before all has been decided, and then all of it: an error
-- leaves the state as it was.

local now, wall -- the virtual clock, and TIME, as of this call
local generation -- TIME at which this state began
local pause, shut, epoch -- the end of the longest pause or ban, a ban?, how many so far
local start = MAGIC .. string.char(VERSION) .. pack('>I2', #planText) .. planText
local ringsSize = ringsOf(plan)
local bodyAt = #start + ringsSize
local image -- all before the body, where it must be written; nil while logs stay in place

function stored(first, last)
  if image then return sub(image, first + 1, last + 1) end
  return redis.call('GETRANGE', key, text(first), text(last))
end

-- The virtual clock goes on as TIME does, and stands still when that steps back.
local function tick(time)
  local v, before
  v, before, generation, frontier = parse('>I7I7I7I7', body, 1)
  now, wall = v + max(0, time - before), time
  drift = wall - now
end

-- The plan a state was kept for, nil if it is none.
local function planIn(raw)
  if #raw < 6 then return nil end
  local p, length = {}, parse('>I2', raw, 5)
  for n in string.gmatch(sub(raw, 7, 6 + length), '%d+') do p[#p + 1] = tonumber(n) end
  if not p[4] or #p ~= 4 + p[3] + 6 * p[4] then return nil end
  for t = 5 + p[3], #p, 6 do
    if not WORDS[p[t]] or p[t + 1] >= p[3] then return nil end
  end
  return p, 6 + length
end

-- Takes over what another plan has left.
local function inherit(raw, time)
  local old, planEnd = planIn(raw)
  if not old then return 'corrupt plan' end
  local size = ringsOf(old)
  body = sub(raw, planEnd + size + 1)
  local expected = bodyOf(old, body)
  if #body < expected or size == 0 and #body > expected then return 'corrupt state' end
  tick(time)
  image = start .. convert(old, sub(raw, planEnd + 1, planEnd + size), max(now, frontier))
end

-- Begins a state of which nothing is used.
local function begin(time)
  image = start .. rep('\0', ringsSize)
  body = pack(FORMAT, 0, time, time, 0, 0, 0, 0, 0, 0, 0)
  body = body .. rep('\0', frontOf(plan) - HEAD)
end

-- Reads a state that was kept for the same plan.
local function resume(raw)
  if ringsSize == 0 then
    image, body = start, sub(raw, bodyAt + 1)
  else
    body = redis.call('GETRANGE', key, text(bodyAt), text(bodyAt + frontOf(plan) + 255))
  end
  local expected = bodyOf(plan, body)
  if ringsSize > 0 and expected < NEVER then
    if #body < expected then
      body = redis.call('GETRANGE', key, text(bodyAt), text(bodyAt + expected - 1))
    end
    body = sub(body, 1, expected)
  end
  if #body ~= expected then return 'corrupt state' end
end

-- Makes a rule of each tier. The queues begin behind the front.
local function arrange()
  local slotCount, poolCount, leaseCount, flags
  pause, epoch, flags, slotCount, poolCount, leaseCount = parse('>I7I4I1I2I1I2', body, 29)
  shut, starving = flags % 2 == 1, flags >= 2
  local at, ring = HEAD + 1, #start
  local queues = frontOf(plan) + 1
  for u = 1, units do
    aloft[u] = parse('>I7', body, at)
    at = at + 7
  end
  local i = 0
  for t = 5 + plan[3], #plan, 6 do
    local algorithm, unit, limit, window = plan[t], plan[t + 1] + 1, plan[t + 2], plan[t + 3]
    local rule
    if algorithm == LOG then
      rule = slidingLog(unit, limit, window, ring, parse('>I7I7I7', body, at))
      ring = ring + 7 * limit
    elseif hasGroups(algorithm) then
      local total, n, lo, hi = parse(sevens(WORDS[algorithm]), body, at)
      local new = algorithm == WINDOW and slidingWindow or anchoredWindow
      rule = new(unit, limit, window, plan[t + 5], total, queue(queues, n, 2), lo, hi)
      queues = queues + 14 * n
    elseif algorithm == 2 then
      rule = weightedWindow(unit, limit, window, plan[t + 5], parse('>I7I7I7', body, at))
    elseif algorithm == 3 then
      rule = fixedWindow(unit, limit, window, plan[t + 5], parse('>I7I7', body, at))
    elseif algorithm == CONCURRENCY then
      rule = concurrency(unit, limit)
    else
      rule = bucket(unit, limit, window, plan[t + 4], parse('>I7I7', body, at))
    end
    i = i + 1
    rules[i], unitOf[i] = rule, unit
    at = at + 7 * WORDS[algorithm]
  end
  slots = queue(queues, slotCount, 1 + units)
  queues = queues + 7 * (1 + units) * slotCount
  readPool(queues, poolCount)
  readLeases(queues + 7 * (1 + units) * poolCount, leaseCount)
end

-- Reads the state; returns what is wrong with it, or nil.
local function load()
  local clock = redis.call('TIME')
  local time = clock[1] * 1000000 + clock[2]
  local raw = ringsSize > 0 and redis.call('GETRANGE', key, '0', text(#start - 1)) or ''
  if sub(raw, 1, 3) ~= MAGIC or raw ~= start then raw = redis.call('GET', key) end
  local problem
  if not raw then
    begin(time)
  elseif sub(raw, 1, 3) ~= MAGIC then
    return 'foreign value'
  elseif string.byte(raw, 4) ~= VERSION then
    return 'version of the state is not known'
  elseif sub(raw, 1, #start) == start then
    problem = resume(raw)
  else
    problem = inherit(raw, time)
  end
  if problem then return problem end
  tick(time)
  arrange()
end

-- The instant from which the state decides as a fresh one would, or at most a
-- guard later.
local function expires()
  local at = max(now, frontier, pause)
  if slots.first <= slots.last then at = max(at, slots[record(slots, slots.last) + 1]) end
  for i = 1, #rules do at = max(at, rules[i].expires()) end
  for i = 1, #leases do at = max(at, leases[i][3]) end
  return at
end

local function save(ttl)
  local parts = {pack(FORMAT, now, wall, generation, frontier, pause, epoch,
    (shut and 1 or 0) + (starving and 2 or 0), length(slots), #pool, #leases)}
  local tiers, n = #rules, 2
  parts[2] = pack(sevens(units), spread(aloft, 1, units))
  for i = 1, tiers do parts[2 + i] = rules[i].words() end
  n = 2 + tiers
  for i = 1, tiers do
    if rules[i].groups then
      n = n + 1
      parts[n] = bytes(rules[i].groups)
    end
  end
  parts[n + 1], parts[n + 2], parts[n + 3] = bytes(slots), poolBytes(), leaseBytes()
  local new = concat(parts)
  if image then
    local reserve = rep('\0', min(8192, floor(ringsSize / 8)))
    redis.call('SET', key, image .. new .. reserve, 'PX', text(ttl))
  else
    redis.call('SETRANGE', key, text(bodyAt), new)
    redis.call('PEXPIRE', key, text(ttl))
  end
  for i = 1, tiers do
    if rules[i].save then rules[i].save() end
  end
end
