-- rule.lua: makes the rule of a tier. Units: µs. Twin: algorithms/plan.go.
--
-- A rule is functions over what the tier remembers. Its load(words, place, groups, ring,
-- capacity) reads that from a state: words has the tier's numbers from a place on, groups is
-- where its groups lie, and ring where its stamps do, of which there is room for so many.

-- The rule of the tier at place t of plan p, if it decides or that is to be asked.
local function ruleOf(p, t)
  local algorithm, unit, limit, window, burst, extra = p[t], p[t + 1] + 1, p[t + 2], p[t + 3], p[t + 4], p[t + 5]
  if isBucket(algorithm) then return bucket(unit, limit, window, burst) end
  if algorithm == LOG then return slidingLog(unit, limit, window) end
  if algorithm == WINDOW then return slidingWindow(unit, limit, window, extra) end
  if algorithm == ANCHORED then return anchoredWindow(unit, limit, window, extra) end
  if algorithm == FIXED then return fixedWindow(unit, limit, window, extra) end
  if algorithm == WEIGHTED then return weightedWindow(unit, limit, window, extra) end
  if algorithm == CALENDAR then return calendar(unit, limit, burst, t < 5 + p[3] + 6 * p.deciding) end
  return concurrency(unit, limit)
end
