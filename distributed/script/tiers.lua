-- tiers.lua: makes a rule of each tier, from what the state tells of it, and finds
-- the queues. Twin: algorithms/plan.go.

local place, queues = body + HEAD + 7 * units, body + front
local ring, log = ringsAt, 0
for u = 1, units do aloft[u] = parse('>I7', state, body + HEAD + 7 * (u - 1)) end

local concurrent = false
for t = 5 + units, #plan, 6 do
  local algorithm, unit, limit, window, extra = plan[t], plan[t + 1] + 1, plan[t + 2], plan[t + 3], plan[t + 5]
  local i, rule = #rules + 1, nil
  capacity[i] = limit
  if isBucket(algorithm) then
    capacity[i] = plan[t + 4]
    rule = bucket(unit, limit, window, capacity[i], parse('>I7I7', state, place))
  elseif algorithm == LOG then
    log = log + 1
    rule = slidingLog(unit, limit, window, ring, capacities[log], parse('>I7I7I7', state, place))
    ring = ring + 7 * capacities[log]
  elseif algorithm == WINDOW then
    local total, n = parse('>I7I7', state, place)
    rule = slidingWindow(unit, limit, window, extra, total, queue(queues, n, 2))
    queues = queues + 14 * n
  elseif algorithm == ANCHORED then
    local total, n, lo, hi = parse('>I7I7I7I7', state, place)
    rule = anchoredWindow(unit, limit, window, extra, total, queue(queues, n, 2), lo, hi)
    queues = queues + 14 * n
  elseif algorithm == FIXED then
    rule = fixedWindow(unit, limit, window, extra, parse('>I7I7I7', state, place))
  elseif algorithm == WEIGHTED then
    rule = weightedWindow(unit, limit, window, extra, parse('>I7I7I7I7', state, place))
  elseif algorithm == CALENDAR then
    rule = calendar(unit, limit, plan[t + 4], parse('>I7I7I7I7', state, place))
    if not rule then return redis.error_reply('THROTTLE clocks of the client and the server are more than a period apart') end
  else
    rule, concurrent = concurrency(unit, limit), true
  end
  rules[i], unitOf[i] = rule, unit
  place = place + 7 * WORDS[algorithm]
end

slots = queue(queues, slotCount, 1 + units)
firstLanding = slotCount > 0 and parse('>I7', state, queues) or NEVER
queues = queues + 7 * (1 + units) * slotCount
pool = readRecords(state, queues, poolCount, 1 + units)
queues = queues + 7 * (1 + units) * poolCount
readings = readRecords(state, queues + 7 * (3 + units) * leaseCount, readingCount, READING)
