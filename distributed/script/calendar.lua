-- calendar.lua: at most limit units in every day, week or month of a time zone.
-- Units: µs, percent. Twin: algorithms/calendar.go.
--
-- Lua knows no zones. So each call tells, for each tier of this kind, when five periods
-- begin, as Unix time: the one before that of the caller's own wall clock, that, and
-- the next three. The clocks may differ by a period, so that every caller knows at least
-- when the period after that of TIME ends: nothing is booked from there on.

local calendars = {} -- the rules
local known = NEVER -- nothing is booked from this instant on

-- ends is the end of the current period, count the units that landed in it, and told
-- how many percent of the limit were told.
local function calendar(unit, limit, ends, count, told)
  local first, second, third, fourth, fifth = argument(), argument(), argument(), argument(), argument()
  if wall < first or wall >= fourth then return nil end
  known = math.min(known, (wall < second and third or wall < third and fourth or fifth) - drift)
  local rule = {}

  -- The end of the period in which an instant counts, as Unix time.
  local function endOf(at)
    at = at + drift
    if at < ends then return ends end
    return at < second and second or at < third and third or at < fourth and fourth or at < fifth and fifth or NEVER
  end

  function rule.earliest(now, n)
    local up = aloft[unit]
    if rule.used(now) + up + n <= limit then return now end
    -- A boundary clears what has landed, but not what is on its way across it.
    local next, i = endOf(now), slots.first
    while up + n > limit do
      if i > slots.last then return NEVER end -- estimates
      local at, carried = landing(i, unit)
      up, i = up - carried, i + 1
      next = math.max(next, endOf(at))
    end
    return next < NEVER and next - drift or NEVER
  end

  local function turn(at)
    if at + drift >= ends then ends, count, told = endOf(at), 0, 0 end
  end

  function rule.land(at, n)
    turn(at)
    count = count + n
  end

  function rule.opened(now)
    local at = endOf(now)
    return (at <= second and first or at <= third and second or at <= fourth and third or fourth) - drift
  end

  function rule.forget(now, keep)
    if rule.used(now) > keep then count = keep end
  end

  function rule.used(now) return now + drift < ends and count or 0 end

  function rule.fresh(now) return rule.used(now) == 0 and now or ends - drift end

  function rule.expires()
    if estimated[unit] and open[unit] > 0 then return fifth - drift end -- it may land in the next
    local lands = lastLanding(unit)
    if not lands then return count > 0 and ends - drift or 0 end
    return endOf(lands) - drift
  end

  function rule.words() return pack('>I7I7I7', ends, count, told) end

  -- From how many percent to how many it has come since it was told, with how much used
  -- and until when; zeros if it has not.
  function rule.crossed(now)
    turn(now)
    local before, used = told, count + aloft[unit] - (estimated[unit] and open[unit] or 0)
    local percent = math.min(100, (divMod(used * 100, limit)))
    if percent <= before then return 0, 0, 0, 0 end
    told = percent
    return before, percent, used, ends
  end

  calendars[#calendars + 1] = rule
  return rule
end
