-- tiers.lua: the rules of the plan's tiers, and where the queues are.
-- Twin: algorithms/plan.go.

local place, queues = body + HEAD + 7 * units, body + front
local ring, log = ringsAt, 0
for u = 1, units do aloft[u] = parse('>I7', state, body + HEAD + 7 * (u - 1)) end

local concurrent = false
for t = 5 + units, #plan, 6 do
  local algorithm, i = plan[t], #rules + 1
  if algorithm == LOG then log = log + 1 end
  local rule = ruleOf(plan, t, state, place, queues, ring, capacities[log])
  if not rule then return redis.error_reply('THROTTLE clocks of the client and the server are more than a period apart') end
  if algorithm == LOG then ring = ring + 7 * capacities[log] end
  if rule.groups then queues = queues + 14 * rule.groups.last end
  rules[i], unitOf[i] = rule, plan[t + 1] + 1
  capacity[i] = isBucket(algorithm) and plan[t + 4] or plan[t + 2]
  concurrent = concurrent or algorithm == CONCURRENCY
  place = place + 7 * WORDS[algorithm]
end

slots = queue(queues, slotCount, 1 + units)
firstLanding = slotCount > 0 and parse('>I7', state, queues) or NEVER
queues = queues + 7 * (1 + units) * slotCount
pool = readRecords(state, queues, poolCount, 1 + units)
queues = queues + 7 * (1 + units) * poolCount
readings = readRecords(state, queues + 7 * (3 + units) * leaseCount, readingCount, READING)
for i = 1, #readings do
  local words = readings[i][10] == 1 and pack('>I7I7I7I7', spread(readings[i], 11, 14))
  own[i] = words and ruleOf(plan, 5 + units + 6 * (i - 1), words, 1) or nil
end
