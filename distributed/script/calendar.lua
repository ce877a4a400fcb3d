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

-- longest is longer than any period, ends is the end of the period of the last landing, count the
-- units that landed in it, reported the last reported percentage of the limit, and last the instant
-- of that landing.
local function calendar(unit, limit, longest, decides)
  local first, second, third, fourth, fifth -- periods begin
  local ends, count, reported, last
  local rule = {reopens = true}

  -- Whether the period of a landing has ended by an instant. A wall clock that steps back does not
  -- reopen a period, and does not make it last for more than longest.
  local function isOver(at, ends, last) return at + drift >= ends or at >= last + longest end

  -- The end of the period at an instant by the wall clock.
  local function endOf(at)
    at = at + drift
    return at < first and first or at < second and second or at < third and third or at < fourth and fourth or at < fifth and fifth or NEVER
  end

  -- Returns a problem if the clocks of the caller and the server differ too much.
  function rule.load(words, at, _, _, _, foreign)
    ends, count, reported, last = parse('>I7I7I7I7', words, at)
    first, second, third, fourth, fifth = 0, 0, 0, 0, 0
    if foreign or not decides then return end
    first, second, third, fourth, fifth = argument(), argument(), argument(), argument(), argument()
    if wall < first or wall >= fourth then return 'clocks of the client and the server are more than a period apart' end
    knownUntil = min(knownUntil, (wall < second and third or wall < third and fourth or fifth) - drift)
    calendars[#calendars + 1] = rule
    -- Unknown, or of a wrong date: the wall clock has since stepped back to before any period with
    -- that end.
    if ends - drift > last + longest then ends = endOf(last) end
  end

  -- The instant from which on a landing in a period does not count.
  local function closesAt(at, ends) return min(ends - drift, at + longest) end

  function rule.earliest(now, n)
    local landed, up = rule.used(now), inFlight[unit]
    if landed + up + n <= limit then return now end
    -- A boundary clears the landed units, but not those in flight across it. If the clock was set
    -- back, a landing before the boundary may delay it.
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
    if isOver(at, ends, last) then ends, count, reported, last = endOf(at), 0, 0, at end
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
    if estimating[unit] and open[unit] > 0 then -- it may land in the next period, or in one that is delayed
      return max(fifth - drift, min(ends - drift, frontier + 2 * longest))
    end
    local lands = lastLanding(unit)
    if not lands then return count > 0 and closesAt(last, ends) or 0 end
    return closesAt(lands, max(ends, endOf(lands)))
  end

  function rule.words() return pack('>I7I7I7I7', ends, count, reported, last) end

  -- The last reported percentage, the present one, the use and the end of the period; zeros if the
  -- percentage has not grown.
  function rule.crossed(now)
    turn(now)
    local before, used = reported, count + inFlight[unit] - (estimating[unit] and open[unit] or 0)
    local percent = min(100, (divMod(used * 100, limit)))
    if percent <= before then return 0, 0, 0, 0 end
    reported = percent
    return before, percent, used, ends
  end

  return rule
end
