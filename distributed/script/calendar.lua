-- calendar.lua: at most limit units in every day, week or month of a time zone. Units: µs, percent.
-- Twin: algorithms/calendar.go.
-- Uses: call.lua, fixedwindow.lua, flight.lua, plan.lua, state.lua.
-- Gives: calendars, knownUntil, calendar.
--
-- Lua has no time zones. So each call contains, for each calendar tier, the beginnings of five
-- periods as Unix time: the period before the one of the caller's own wall clock, that period, and
-- the next three. The clocks may differ by a period, so the arguments of every caller contain at
-- least the end of the period after the one of TIME. Nothing is reserved from that end on.
--
-- A call contains no periods for a guest tier. When the period of its last landing is over, the
-- next period has no end until the tier decides again. All units that landed in it then count in
-- the period of the last one.

local calendars -- the rules
local knownUntil -- nothing is reserved from this instant on

-- longest is longer than any period.
local function calendar(unit, limit, longest, decides)
  local first, second, third, fourth, fifth -- periods begin

  -- The end of the period at an instant by the wall clock.
  local function endOf(at)
    at = at + drift
    return at < first and first or at < second and second or at < third and third or at < fourth and fourth or at < fifth and fifth or NEVER
  end

  local rule = fixedWindow(unit, limit, longest, 0, endOf)
  local load, correct, expires = rule.load, rule.correct, rule.expires
  rule.correct = nil -- load calls it

  -- Returns a problem if the clocks of the caller and the server differ too much.
  function rule.load(words, at, _, _, _, foreign)
    load(words, at)
    first, second, third, fourth, fifth = 0, 0, 0, 0, 0
    if foreign or not decides then return end
    first, second, third, fourth, fifth = argument(), argument(), argument(), argument(), argument()
    if wall < first or wall >= fourth then return 'clocks of the client and the server are more than a period apart' end
    knownUntil = min(knownUntil, (wall < second and third or wall < third and fourth or fifth) - drift)
    calendars[#calendars + 1] = rule
    correct() -- the end may also be unknown
  end

  function rule.opened(now)
    local at = now + drift
    return (at < second and first or at < third and second or at < fourth and third or at < fifth and fourth or fifth) - drift
  end

  function rule.expires()
    if not estimating[unit] or open[unit] == 0 then return expires() end
    return max(fifth - drift, frontier + 2 * longest) -- it may land in the next period, or in one that is delayed
  end

  return rule
end
