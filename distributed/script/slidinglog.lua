-- slidinglog.lua: at most limit units in every half-open interval of one window.
-- Units: µs. Twin: algorithms/slidinglog.go.
--
-- The last limit stamps lie in a ring of seven bytes each, beside the body. The
-- stamp that a new one would overwrite is the one that must have left the window:
-- a decision reads one of them, whatever the limit. What lands in this call is
-- written when the call ends.

local stored -- function(first, last): the bytes of the state, from 0; see state.lua

-- ring is where the ring lies in the state, length how many stamps it has, place
-- where the next one goes, and newest the last.
local function slidingLog(unit, limit, window, ring, length, place, newest)
  local instants, upTo, added = {}, {}, 0 -- what landed in this call, in runs
  local rule = {}

  -- The k-th oldest of the last limit stamps, nil where there are fewer.
  local function stamp(k)
    local newer = limit - k
    if newer >= length then return nil end
    if newer < added then
      local run = #upTo
      while run > 1 and upTo[run - 1] >= added - newer do run = run - 1 end
      return instants[run]
    end
    local at = ring + 7 * ((place + k - 1) % limit)
    return (parse('>I7', stored(at, at + 6), 1))
  end

  function rule.earliest(now, n)
    -- The unit that must have left is the k-th oldest of those landed, or if they
    -- are too few, one of those on their way, which leaves a window after it lands.
    local k = aloft[unit] + n
    if k > limit then return nthLanding(unit, k - limit) + window end
    local s = stamp(k)
    return s and max(now, s + window) or now
  end

  function rule.land(at, n)
    n = min(n, limit)
    added = added + n
    instants[#instants + 1], upTo[#upTo + 1] = at, added
    length, place, newest = min(limit, length + n), (place + n) % limit, at
  end

  function rule.used(now)
    local few, many = 0, length -- how many may still be in view
    while few < many do
      local middle = floor((few + many) / 2)
      if stamp(limit - middle) > now - window then few = middle + 1 else many = middle end
    end
    return few
  end

  function rule.fresh(now) return length > 0 and newest + window or now end

  function rule.expires()
    local lands = lastLanding(unit)
    return lands and lands + window or rule.fresh(0)
  end

  function rule.words() return pack('>I7I7I7', length, place, newest) end

  function rule.save()
    if added == 0 then return end
    local runs, before = {}, 0
    for i = 1, #upTo do
      runs[i] = rep(pack('>I7', instants[i]), upTo[i] - before)
      before = upTo[i]
    end
    local stamps = sub(concat(runs), -7 * limit)
    local first = (place - #stamps / 7) % limit
    local fits = 7 * (limit - first)
    redis.call('SETRANGE', key, text(ring + 7 * first), sub(stamps, 1, fits))
    if #stamps > fits then redis.call('SETRANGE', key, text(ring), sub(stamps, fits + 1)) end
  end

  return rule
end
