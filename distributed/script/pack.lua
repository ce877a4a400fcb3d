-- pack.lua: numbers as bytes, unsigned and big-endian, most of them seven wide:
-- '>I7I2' is one of seven and one of two. Redis and Valkey have the struct
-- library, Lua 5.4 has string.pack; elsewhere the same is spelled out.

local sub, rep, concat = string.sub, string.rep, table.concat
local spread = rawget(_G, 'unpack') or table.unpack
local packer = rawget(_G, 'struct') or string
local pack, parse = packer.pack, packer.unpack

if not pack then
  pack = function(format, ...)
    local bytes, i = {}, 0
    for width in string.gmatch(format, '%d') do
      i = i + 1
      local x, first = (select(i, ...)), #bytes
      for b = first + width, first + 1, -1 do
        bytes[b] = string.char(x % 256)
        x = floor(x / 256)
      end
    end
    return concat(bytes)
  end
  parse = function(format, s, at)
    local numbers = {}
    for width in string.gmatch(format, '%d') do
      local x = 0
      for b = at, at + width - 1 do x = x * 256 + string.byte(s, b) end
      numbers[#numbers + 1], at = x, at + width
    end
    return spread(numbers)
  end
end

-- The format of n numbers of seven bytes.
local function sevens(n) return '>' .. rep('I7', n) end

-- A number as text. Lua's own text keeps 14 digits; a microsecond stamp has 16.
local function text(n) return string.format('%.0f', n) end
