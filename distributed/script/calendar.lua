-- calendar.lua: at most limit units in every day, week or month of a time zone.
-- Units: µs, percent. Twin: algorithms/calendar.go.
--
-- Lua knows no zones. So each call tells, for each tier of this kind, when five periods
-- begin, as Unix time: the one before that of the caller's own wall clock, that, and
-- the next three. The clocks may differ by a period, so that every caller knows at least
-- when the period after that of TIME ends: nothing is booked from there on.
--
-- A tier that does not decide is told of no periods. When the one of its last landing is over,
-- the next has no end until the tier decides again: then all that landed in it counts
-- in the period of the last.

local calendars -- the rules
local known -- nothing is booked from this instant on

-- longest is more than any period takes, ends the end of the period of the last landing,
-- count the units that landed in it, told how many percent of the limit were told, and last
-- the instant of that landing.
local function calendar(unit, limit, longest, decides)
  local first, second, third, fourth, fifth = 0, 0, 0, 0, 0 -- periods begin
  local ends, count, told, last
  local rule = {reopens = true}

  -- Whether the period of a landing has ended by an instant. A wall clock that steps back
  -- does not reopen a period, nor does it make one last longer than any.
  local function isOver(at, ends, last) return at + drift >= ends or at >= last + longest end

  -- The end of the period that the wall clock shows.
  local function endOf(at)
    at = at + drift
    return at < second and second or at < third and third or at < fourth and fourth or at < fifth and fifth or NEVER
  end

  -- Answers what is wrong if the clocks of the caller and the server differ too much.
  function rule.load(words, at)
    ends, count, told, last = parse('>I7I7I7I7', words, at)
    if not decides then return end
    first, second, third, fourth, fifth = argument(), argument(), argument(), argument(), argument()
    if wall < first or wall >= fourth then return 'clocks of the client and the server are more than a period apart' end
    known = min(known, (wall < second and third or wall < third and fourth or fifth) - drift)
    calendars[#calendars + 1] = rule
    if ends == NEVER then ends = endOf(last) end
  end

  -- The instant from which a landing in a period counts no more.
  local function closesAt(at, ends) return min(ends - drift, at + longest) end

  function rule.earliest(now, n)
    local landed, up = rule.used(now), aloft[unit]
    if landed + up + n <= limit then return now end
    -- A boundary clears what has landed, but not what is on its way across it. What lands
    -- before may put it off, where the clock was set back.
    local next, i = landed > 0 and closesAt(last, ends) or now, slots.first
    local ends, last = ends, last
    while i <= slots.last do
      local at, carried = landing(i, unit)
      if up + n <= limit and at >= next then break end
      if carried > 0 then
        if isOver(at, ends, last) then ends = endOf(at) end
        if ends == NEVER then return NEVER end
        next, last = max(next, closesAt(at, ends)), at
      end
      up, i = up - carried, i + 1
    end
    return up + n > limit and NEVER or next -- estimates
  end

  local function turn(at)
    if isOver(at, ends, last) then ends, count, told, last = endOf(at), 0, 0, at end
  end

  function rule.land(at, n)
    turn(at)
    count, last = count + n, at
  end

  function rule.opened(now)
    local at = now + drift
    return (at < second and first or at < third and second or at < fourth and third or at < fifth and fourth or fifth) - drift
  end

  function rule.forget(now, keep)
    if rule.used(now) > keep then count = keep end
  end

  function rule.used(now) return isOver(now, ends, last) and 0 or count end

  function rule.fresh(now) return rule.used(now) == 0 and now or closesAt(last, ends) end

  function rule.expires()
    if estimated[unit] and open[unit] > 0 then -- it may land in the next, or in one that is put off
      return max(fifth - drift, min(ends - drift, frontier + 2 * longest))
    end
    local lands = lastLanding(unit)
    if not lands then return count > 0 and closesAt(last, ends) or 0 end
    return closesAt(lands, max(ends, endOf(lands)))
  end

  function rule.words() return pack('>I7I7I7I7', ends, count, told, last) end

  -- From how many percent to how many it has come since it was told, with how much used
  -- and until when; zeros if it has not.
  function rule.crossed(now)
    turn(now)
    local before, used = told, count + aloft[unit] - (estimated[unit] and open[unit] or 0)
    local percent = min(100, (divMod(used * 100, limit)))
    if percent <= before then return 0, 0, 0, 0 end
    told = percent
    return before, percent, used, ends
  end

  return rule
end
