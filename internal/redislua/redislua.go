// Package redislua runs the scripts of Redis, for servers in memory.
package redislua

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// An Error is an error that the server replies.
type Error string

func (e Error) Error() string { return string(e) }

// RedisError marks an error of a server for go-redis.
func (Error) RedisError() {}

// A Status is a reply such as OK.
type Status string

// An Interpreter runs scripts as a server does, except that globals are not protected. It is not
// safe for concurrent use.
type Interpreter struct {
	State *lua.LState
	call  func(args []string) (any, error)
}

// New returns an interpreter. The function call implements redis.call. It returns an integer, a
// string, a Status, a list of them, or nil.
func New(call func(args []string) (any, error)) *Interpreter {
	l := lua.NewState(lua.Options{SkipOpenLibs: true, RegistrySize: 1 << 10, RegistryGrowStep: 1 << 10, RegistryMaxSize: 1 << 20})
	for name, open := range map[string]lua.LGFunction{
		lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath,
	} {
		l.Push(l.NewFunction(open))
		l.Push(lua.LString(name))
		l.Call(1, 0)
	}
	i := &Interpreter{State: l, call: call}
	redis := l.NewTable()
	redis.RawSetString("call", l.NewFunction(i.command(false)))
	redis.RawSetString("pcall", l.NewFunction(i.command(true)))
	redis.RawSetString("error_reply", l.NewFunction(func(l *lua.LState) int {
		l.Push(errorTable(l, l.CheckString(1)))
		return 1
	}))
	redis.RawSetString("replicate_commands", l.NewFunction(func(l *lua.LState) int { // does nothing since Redis 5
		l.Push(lua.LTrue)
		return 1
	}))
	l.SetGlobal("redis", redis)
	structs := l.NewTable()
	structs.RawSetString("pack", l.NewFunction(packNumbers))
	structs.RawSetString("unpack", l.NewFunction(unpackNumbers))
	l.SetGlobal("struct", structs)
	return i
}

// protos contains the compiled scripts of all interpreters, by source.
var protos sync.Map

// callRun ends the script that decides. The script consists of a library and this call of it.
const callRun = "return run(KEYS, ARGV)\n"

// Compile returns a script as a function of its keys and arguments. A library is defined once, as
// on a server that has it as a function.
func (i *Interpreter) Compile(source string) (*lua.LFunction, error) {
	library, found := strings.CutSuffix(source, callRun)
	proto, err := compile(source, library, found)
	if err != nil {
		return nil, err
	}
	script := i.State.NewFunctionFromProto(proto)
	if found {
		i.State.Push(script)
		if err := i.State.PCall(0, 1, nil); err != nil {
			return nil, err
		}
		script = i.State.CheckFunction(-1)
		i.State.SetTop(0)
	}
	return script, nil
}

func compile(source, library string, isLibrary bool) (*lua.FunctionProto, error) {
	if proto, found := protos.Load(source); found {
		return proto.(*lua.FunctionProto), nil
	}
	text := source
	if isLibrary {
		text = library + "return run\n"
	}
	chunk, err := parse.Parse(strings.NewReader(text), "user_script")
	if err != nil {
		return nil, err
	}
	proto, err := lua.Compile(chunk, "user_script")
	if err != nil {
		return nil, err
	}
	protos.Store(source, proto)
	return proto, nil
}

// Run runs a script and returns its answer: an int64, a string, a list of them, or nil.
func (i *Interpreter) Run(script *lua.LFunction, keys, args []string) (any, error) {
	l := i.State
	defer l.SetTop(0)
	k, a := list(l, keys), list(l, args)
	l.SetGlobal("KEYS", k)
	l.SetGlobal("ARGV", a)
	l.Push(script)
	l.Push(k)
	l.Push(a)
	if err := l.PCall(2, 1, nil); err != nil {
		if api := (*lua.ApiError)(nil); errors.As(err, &api) {
			return nil, Error("ERR " + api.Object.String())
		}
		return nil, Error("ERR " + err.Error())
	}
	return fromLua(l.Get(-1))
}

func list(l *lua.LState, values []string) *lua.LTable {
	t := l.CreateTable(len(values), 0)
	for _, v := range values {
		t.Append(lua.LString(v))
	}
	return t
}

func errorTable(l *lua.LState, text string) *lua.LTable {
	t := l.NewTable()
	t.RawSetString("err", lua.LString(text))
	return t
}

func (i *Interpreter) command(protected bool) lua.LGFunction {
	return func(l *lua.LState) int {
		args := make([]string, l.GetTop())
		for n := range args {
			switch v := l.Get(n + 1).(type) {
			case lua.LString:
				args[n] = string(v)
			case lua.LNumber:
				args[n] = strconv.FormatFloat(float64(v), 'g', 17, 64)
			default:
				l.RaiseError("Lua redis lib command arguments must be strings or integers")
			}
		}
		value, err := i.call(args)
		switch {
		case err != nil && protected:
			l.Push(errorTable(l, err.Error()))
		case err != nil:
			l.RaiseError("%s", err.Error())
		default:
			l.Push(toLua(l, value))
		}
		return 1
	}
}

func toLua(l *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case int64:
		return lua.LNumber(v)
	case int:
		return lua.LNumber(v)
	case string:
		return lua.LString(v)
	case Status:
		t := l.NewTable()
		t.RawSetString("ok", lua.LString(v))
		return t
	case []string:
		return list(l, v)
	case []any:
		t := l.CreateTable(len(v), 0)
		for _, one := range v {
			t.Append(toLua(l, one))
		}
		return t
	}
	return lua.LFalse // a missing value
}

func fromLua(value lua.LValue) (any, error) {
	switch v := value.(type) {
	case lua.LNumber:
		return int64(v), nil
	case lua.LString:
		return string(v), nil
	case lua.LBool:
		if v {
			return int64(1), nil
		}
	case *lua.LTable:
		if text, ok := v.RawGetString("err").(lua.LString); ok {
			return nil, Error(text)
		}
		values := make([]any, 0, v.Len())
		for n := 1; n <= v.Len(); n++ {
			one, err := fromLua(v.RawGetInt(n))
			if err != nil {
				return nil, err
			}
			values = append(values, one)
		}
		return values, nil
	}
	return nil, nil
}

// The struct library, for unsigned big-endian numbers of one to eight bytes only: '>I7I2'.

func packNumbers(l *lua.LState) int {
	bytes := make([]byte, 0, 7*l.GetTop())
	for n, width := range widths(l) {
		x := uint64(int64(l.CheckNumber(n + 2))) // which may be negative
		for at := width - 1; at >= 0; at-- {
			bytes = append(bytes, byte(x>>(8*at)))
		}
	}
	l.Push(lua.LString(bytes))
	return 1
}

func unpackNumbers(l *lua.LState) int {
	s, at, all := l.CheckString(2), l.OptInt(3, 1)-1, widths(l)
	l.SetTop(0)
	for _, width := range all {
		if at < 0 || at+width > len(s) {
			l.RaiseError("data string too short")
		}
		x := uint64(0)
		for _, b := range []byte(s[at : at+width]) {
			x = x<<8 | uint64(b)
		}
		l.Push(lua.LNumber(x))
		at += width
	}
	l.Push(lua.LNumber(at + 1))
	return len(all) + 1
}

// widths returns the widths of the numbers of a format.
func widths(l *lua.LState) []int {
	format := l.CheckString(1)
	all := make([]int, 0, len(format)/2)
	for i := 0; i < len(format); i++ {
		switch c := format[i]; {
		case c == '>' || c == 'I':
		case '1' <= c && c <= '8':
			all = append(all, int(c-'0'))
		default:
			l.RaiseError("%s", fmt.Sprintf("invalid format option '%c'", c))
		}
	}
	return all
}
