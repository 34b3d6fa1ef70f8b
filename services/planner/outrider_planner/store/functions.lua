#!lua name=outrider_v1

-- Writes of the planner, each in one step. Nothing is written before everything was checked: an
-- error half-way would leave a part applied whose sequence is not, and it would be applied again.
local MOST_AMOUNT = 9007199254740991

local function is_known(writer_key, sequence)
  return tonumber(sequence) <= tonumber(redis.call('GET', writer_key) or '0')
end

local function acknowledge(writer_key, sequence, keep_s)
  redis.call('SET', writer_key, string.format('%d', tonumber(sequence)), 'EX', keep_s)
end

local function whole_seconds(seconds)
  return string.format('%d', math.ceil(tonumber(seconds)))
end

local function amount_fault(args)
  for i = 5, #args, 2 do
    local amount = string.match(args[i], '^%d+$') and tonumber(args[i])
    if not amount or amount > MOST_AMOUNT then
      return 'ERR amount of ' .. args[i - 1] .. ' must be a whole number below 2^53'
    end
  end
  return #args % 2 == 0 and 'ERR a field without an amount' or nil
end

-- The bucket to write to: the server's clock, never a planner's; and never back, should the
-- server's clock step back.
local function bucket_now(index_key, bucket_s)
  local time = redis.call('TIME')
  local bucket = math.floor((tonumber(time[1]) + tonumber(time[2]) / 1e6) / bucket_s)
  local newest = redis.call('ZRANGE', index_key, -1, -1)
  return newest[1] and math.max(bucket, tonumber(newest[1])) or bucket
end

-- Adds integer sums to the newest bucket of a scope, exactly once per (writer, sequence).
-- KEYS: index of buckets, last sequence of the writer, prefix of the buckets' hashes; all three
-- carry the scope's hash tag, so the hash that is chosen here lies in the same slot.
-- ARGV: bucket length in s, time to live in s, sequence, then field and amount in turn.
local function add(keys, args)
  local bucket_s, keep_s = tonumber(args[1]), tonumber(args[2])
  if is_known(keys[2], args[3]) then
    return 0
  end
  local fault = amount_fault(args)
  if fault then
    return redis.error_reply(fault)
  end
  local bucket = bucket_now(keys[1], bucket_s)
  local name = string.format('%d', bucket)
  local sums = keys[3] .. name
  for i = 4, #args, 2 do
    -- A sum that is full, or that is none, stays as it is; all others and the sequence go on.
    redis.pcall('HINCRBY', sums, args[i], args[i + 1])
  end
  local ttl = whole_seconds(keep_s)
  redis.call('EXPIRE', sums, ttl)
  redis.call('ZADD', keys[1], bucket, name)
  -- By number and not by age: a clock that steps ahead drops nothing.
  redis.call('ZREMRANGEBYRANK', keys[1], 0, -1 - math.floor(keep_s / bucket_s))
  redis.call('EXPIRE', keys[1], ttl)
  acknowledge(keys[2], args[3], ttl)
  return 1
end

-- Keeps a value unless its version or a newer one is there; returns the version and text kept.
-- KEYS: the value. ARGV: version, text, time to live in s (0: for ever).
local function keep(keys, args)
  local present = redis.call('HMGET', keys[1], 'version', 'text')
  local version = present[2] and tonumber(present[1])
  if not version or version < tonumber(args[1]) then
    redis.call('HSET', keys[1], 'version', args[1], 'text', args[2])
    present = { args[1], args[2] }
  end
  if tonumber(args[3]) > 0 then
    redis.call('EXPIRE', keys[1], whole_seconds(args[3]))
  else
    redis.call('PERSIST', keys[1])
  end
  return present
end

-- Appends entries to a log, exactly once per (writer, sequence).
-- KEYS: the log, last sequence of the writer. ARGV: entries kept, time to live in s, sequence, then
-- the entries.
local function append(keys, args)
  if is_known(keys[2], args[3]) then
    return 0
  end
  for i = 4, #args do
    redis.call('XADD', keys[1], 'MAXLEN', '~', args[1], '*', 'entry', args[i])
  end
  local ttl = whole_seconds(args[2])
  redis.call('EXPIRE', keys[1], ttl)
  acknowledge(keys[2], args[3], ttl)
  return 1
end

redis.register_function('outrider_v1_add', add)
redis.register_function('outrider_v1_keep', keep)
redis.register_function('outrider_v1_append', append)
