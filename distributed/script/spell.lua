-- spell.lua: the functions of the struct library for servers without it.
-- Gives: spellOut, spell.

local function spellOut(widths, ...)
  local bytes, i = {}, 0
  for width in string.gmatch(widths, '%d') do
    i = i + 1
    local x, first = (select(i, ...)), #bytes
    for b = first + width, first + 1, -1 do
      bytes[b] = string.char(x % 256)
      x = math.floor(x / 256)
    end
  end
  return concat(bytes)
end

local function spell(widths, s, at)
  local numbers = {}
  for width in string.gmatch(widths, '%d') do
    local x = 0
    for b = at, at + width - 1 do x = x * 256 + string.byte(s, b) end
    numbers[#numbers + 1], at = x, at + width
  end
  return spread(numbers)
end
