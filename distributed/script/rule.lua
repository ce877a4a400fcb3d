-- rule.lua: makes the rule of a tier, from what a state tells of it. Units: µs.
-- Twin: algorithms/plan.go.

-- words tells the numbers of tier t of plan p from a place on, groups is where its groups lie
-- in the state, and ring where its stamps do, of which there is room for so many. It is nil
-- if the caller's wall clock and TIME differ by more than a period of the calendar.
local function ruleOf(p, t, words, place, groups, ring, capacity)
  local algorithm, unit, limit, window, burst, extra = p[t], p[t + 1] + 1, p[t + 2], p[t + 3], p[t + 4], p[t + 5]
  if isBucket(algorithm) then
    return bucket(unit, limit, window, burst, parse('>I7I7', words, place))
  elseif algorithm == LOG then
    return slidingLog(unit, limit, window, ring, capacity, parse('>I7I7I7', words, place))
  elseif algorithm == WINDOW then
    local total, n = parse('>I7I7', words, place)
    return slidingWindow(unit, limit, window, extra, total, queue(groups, n, 2))
  elseif algorithm == ANCHORED then
    local total, n, lo, hi = parse('>I7I7I7I7', words, place)
    return anchoredWindow(unit, limit, window, extra, total, queue(groups, n, 2), lo, hi)
  elseif algorithm == FIXED then
    return fixedWindow(unit, limit, window, extra, parse('>I7I7I7', words, place))
  elseif algorithm == WEIGHTED then
    return weightedWindow(unit, limit, window, extra, parse('>I7I7I7I7', words, place))
  elseif algorithm == CALENDAR then
    return calendar(unit, limit, burst, parse('>I7I7I7I7', words, place))
  end
  return concurrency(unit, limit)
end
