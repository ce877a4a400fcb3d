-- number.lua: whole numbers from 0 to 2^53, exact in Lua's doubles as in Go's int64.
-- Twin: algorithms/number.go. Gives: NEVER, LATEST, divMod, mulDiv, ceilMulDiv, and the locals that
-- bind in pack.lua sets.
--
-- The parts are one library. It is loaded once as a function of the server, or anew with each call
-- as a script. No global is available while it is loaded as a function, so only run, in main.lua,
-- uses functions of Lua and the server before bind has set these locals.

-- Functions of Lua and the server, which bind in pack.lua sets.
local max, min, sub, rep, concat, spread, pack, parse, format, tointeger, call

local NEVER = 2 ^ 53 -- the instant of an event that the passing of time alone does not bring about
local LATEST = 2 ^ 52 -- a later instant, more than 142 years ahead, counts as NEVER

-- p ÷ c and the remainder, for c > 0. Below 2^53 a quotient differs from the next whole number by
-- more than a double's rounding.
local function divMod(p, c)
  local q = p / c
  q = q - q % 1
  return q, p - q * c
end

-- a × b ÷ c and the remainder, for a, b ≥ 0 and c > 0.
local function mulDiv(a, b, c)
  local product = (a + 0.0) * b -- a float, because integers of Lua 5.4 wrap
  if product < NEVER then -- divMod without a call
    local q = product / c
    q = q - q % 1
    return q, product - q * c
  end
  -- 1,000,000 units × 30 days in µs is 2.6e18: divide first, then the remainder.
  local whole, rest = divMod(b, c)
  local q, r = 0, 0
  product = (a + 0.0) * rest
  if product < NEVER then
    q, r = divMod(product, c)
  else
    -- Long division, a's digits from the first on. The base keeps r × base and
    -- r + digit × rest below 2^53; both r and rest are less than c.
    local base, power, left = max(2, (divMod(NEVER - 1, c))), 1, a + 0.0
    while power * base <= a do power = power * base end
    while power >= 1 do
      local digit, more
      digit, left = divMod(left, power)
      more, r = divMod(r * base, c)
      q = q * base + more
      more, r = divMod(r + digit * rest, c)
      q, power = q + more, power / base
    end
  end
  q = q + (a + 0.0) * whole
  if q >= NEVER then return NEVER, 0 end
  return q, r
end

-- a × b ÷ c, rounded up.
local function ceilMulDiv(a, b, c)
  local q, r = mulDiv(a, b, c)
  return r > 0 and q + 1 or q
end
