-- pack.lua: numbers as bytes, unsigned and big-endian, most of them seven wide: '>I7I2' is one of
-- seven and one of two. Redis and Valkey have the struct library, Lua 5.4 has string.pack; without
-- either, spell.lua does the same.
-- Gives: bind, sevens, text, readRecords, putRecords.
-- Sets: call, concat, format, max, min, pack, parse, rep, spread, sub, tointeger.

-- Sets the locals for functions of Lua and the server.
local function bind()
  max, min, sub, rep, concat, call = math.max, math.min, string.sub, string.rep, table.concat, redis.call
  format, tointeger = string.format, math.tointeger
  spread = rawget(_G, 'unpack') or table.unpack
  local packer = rawget(_G, 'struct') or string
  pack, parse = packer.pack, packer.unpack
  if pack then return end
  include 'spell'
  pack, parse = spellOut, spell
end

-- The format of n numbers of seven bytes.
local formats = {}
local function sevens(n)
  local list = formats[n] or '>' .. rep('I7', n)
  if n <= 64 then formats[n] = list end
  return list
end

-- A number as text. Lua's own conversion keeps 14 digits; an instant in µs has 16.
local function text(n) return format('%.0f', n) end

-- n records of a width, at a place in bytes, each a table.
local function readRecords(s, at, n, width)
  local records, numbers = {}, sevens(width)
  for i = 1, n do records[i] = {parse(numbers, s, at + 7 * width * (i - 1))} end
  return records
end

-- Appends records to parts, as bytes.
local function putRecords(parts, records, width)
  for i = 1, #records do parts[#parts + 1] = pack(sevens(width), spread(records[i], 1, width)) end
end
