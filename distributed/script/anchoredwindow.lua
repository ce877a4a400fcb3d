-- anchoredwindow.lua: at most limit units in the window that opens with the first
-- request. Units: µs. Twin: algorithms/anchoredwindow.go.
--
-- The window may close at any instant from lo, a window after its opener was
-- admitted, to hi, a window after that was known to have landed. While nobody
-- knows which window the provider is in, the rolling bound is kept.

local OPENING = NEVER -- the hi of a window of which no request has landed yet

local function anchoredWindow(unit, limit, window, precision)
  local rolling = slidingWindow(unit, limit, window, precision)
  local lo, hi
  local rule = {reopens = true}

  function rule.load(words, at, groupsAt)
    rolling.load(words, at, groupsAt)
    rule.groups = rolling.groups
    lo, hi = parse('>I7I7', words, at + 14)
  end

  -- What hi becomes when a request lands.
  local function landed(hi, at)
    if hi == OPENING or at >= lo then return at + window end
    return hi
  end

  -- What hi becomes when all has landed, and when the last of it lands. Of those
  -- that land before lo only the first counts.
  local function sentSoFar()
    local last = lastLanding(unit)
    if not last then return hi end
    if last < lo and hi == OPENING then return nthLanding(unit, 1) + window, last end
    return landed(hi, last), last
  end

  function rule.earliest(now, n)
    if estimated[unit] and open[unit] > 0 then return rolling.earliest(now, n) end -- nobody knows when it lands
    local closes, last = sentSoFar()
    local opens = last or now
    if closes ~= OPENING then opens = max(opens, closes) end
    return min(opens, rolling.earliest(now, n))
  end

  function rule.depart(at)
    if aloft[unit] == 0 and (hi == OPENING or hi <= at) then
      lo, hi = at + window, OPENING
      rolling.clear()
    end
  end

  function rule.land(at, n)
    hi = landed(hi, at)
    rolling.land(at, n)
  end

  function rule.used(now)
    if hi <= now and aloft[unit] == 0 then return 0 end
    return rolling.used(now)
  end

  function rule.fresh(now) return hi == OPENING and now or max(now, hi) end

  function rule.forget(now, keep)
    rolling.forget(now, keep)
    if keep == 0 and aloft[unit] == 0 then lo, hi = 0, 0 end
  end

  function rule.expires()
    local closes = sentSoFar()
    return closes == OPENING and 0 or closes
  end

  function rule.words() return rolling.words() .. pack('>I7I7', lo, hi) end

  return rule
end
