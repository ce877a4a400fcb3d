-- pack.lua: numbers as bytes, unsigned and big-endian, most of them seven wide:
-- '>I7I2' is one of seven and one of two. Redis and Valkey have the struct
-- library, Lua 5.4 has string.pack; elsewhere the same is spelled out.

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
        x = math.floor(x / 256)
      end
    end
    return table.concat(bytes)
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
local function sevens(n) return '>' .. string.rep('I7', n) end

-- A number as text. Lua's own text keeps 14 digits; a microsecond stamp has 16.
local function text(n) return string.format('%.0f', n) end

-- n records of some width at a place in bytes, each a table.
local function readRecords(s, at, n, width)
  local records, format = {}, n > 0 and sevens(width)
  for i = 1, n do records[i] = {parse(format, s, at + 7 * width * (i - 1))} end
  return records
end

local function recordBytes(records, width)
  if #records == 0 then return '' end
  local out, format = {}, sevens(width)
  for i = 1, #records do out[i] = pack(format, spread(records[i], 1, width)) end
  return table.concat(out)
end
