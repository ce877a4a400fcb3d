-- rule.lua: the algorithms, and the rule of a tier. Units: µs.
-- Twin: algorithms/counter.go.
-- Gives: the names of algorithms, WORDS, hasGroups, isBucket, drains, ruleOf.
--
-- A rule is functions over the numbers that its tier keeps. Its load(words, place, groups, ring,
-- capacity) reads them from a state: words contains the tier's numbers from place on, groups is
-- where its groups begin, and ring where its stamps begin, with room for capacity of them. A rule with
-- correct is corrected after the clock was set back.

local LOG = 0 -- as in algorithms/counter.go
local WINDOW = 1
local WEIGHTED = 2
local FIXED = 3
local ANCHORED = 4
local CONCURRENCY = 8
local CALENDAR = 9
local LEARNED = 10 -- a bucket whose rate is learned, whatever its algorithm in Go
-- By algorithm, the numbers that a tier keeps in the state.
local WORDS = {[0] = 3, 2, 4, 3, 4, 2, 2, 2, 0, 4, 7}

local UNKNOWN_PHASE = 1 -- the burst of a log or a window that counts in windows of unknown phase

local function hasGroups(algorithm) return algorithm == WINDOW or algorithm == ANCHORED end
local function isBucket(algorithm) return algorithm >= 5 and algorithm <= 7 end
local function drains(algorithm) return isBucket(algorithm) or algorithm == LEARNED end

-- The rule of the tier at index t of plan p. A line include 'x' stands for the part x.
local function ruleOf(p, t)
  local algorithm, unit, limit, window, burst, extra = p[t], p[t + 1] + 1, p[t + 2], p[t + 3], p[t + 4], p[t + 5]
  if isBucket(algorithm) then
    include 'gcra'
    return bucket(unit, limit, window, burst)
  elseif algorithm == LEARNED then
    include 'learnedrate'
    return learnedRate(unit, limit, window, burst, extra)
  elseif algorithm == LOG then
    include 'slidinglog'
    return slidingLog(unit, limit, window, burst == UNKNOWN_PHASE)
  elseif algorithm == WINDOW or algorithm == ANCHORED then
    include 'slidingwindow'
    if algorithm == WINDOW then return slidingWindow(unit, limit, window, extra, burst == UNKNOWN_PHASE) end
    include 'anchoredwindow'
    return anchoredWindow(unit, limit, window, extra)
  elseif algorithm == FIXED or algorithm == WEIGHTED or algorithm == CALENDAR then
    include 'fixedwindow'
    if algorithm == FIXED then return fixedWindow(unit, limit, window, extra) end
    if algorithm == CALENDAR then
      include 'calendar'
      return calendar(unit, limit, burst, t < 5 + p[3] + 6 * p.deciding)
    end
    include 'weightedwindow'
    return weightedWindow(unit, limit, window, extra)
  end
  include 'concurrency'
  return concurrency(unit, limit)
end
