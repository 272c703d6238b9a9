package read_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source/read"
)

// hostile are texts that are meant to take much more memory than they are long.
// Each is some 256 KiB.
func hostile() map[string]string {
	const size = 1 << 18
	fill := func(head, unit, tail string) string {
		return head + strings.Repeat(unit, (size-len(head)-len(tail))/len(unit)) + tail
	}
	count := func(head, unit, tail string) string { // unit has a verb for a number
		var b strings.Builder
		b.WriteString(head)
		for i := 0; b.Len() < size; i++ {
			fmt.Fprintf(&b, unit, i)
		}
		return b.String() + tail
	}
	const one = "[[services]]\nname = 'a'\nvips = ['10.96.0.1']\nports = [{ port = 1 }]\n"
	return map[string]string{
		"lines.toml":            fill("services = []", "\n", ""),
		"lines.json":            fill(`{"services": []`, "\n", "}"),
		"lists.toml":            fill("services = [", "[],", "]"),
		"lists.json":            fill(`{"services": [`, "[],", "[]]}"),
		"nested lists.toml":     fill("services = [", strings.Repeat("[", 29)+strings.Repeat("]", 29)+",", "]"),
		"tables.toml":           fill("services = [", "{},", "]"),
		"tables.json":           fill(`{"services": [`, "{},", "{}]}"),
		"sparse tables.toml":    fill("services = [", "{a=1}      ,", "]"),
		"sparse tables.json":    fill(`{"services": [`, `{"a":1}     ,`, "{}]}"),
		"headers.toml":          fill("", "[[services]]\n", ""),
		"keys.toml":             count("services = []\n", "a%d = 1\n", ""),
		"keys.json":             count(`{"services": []`, `,"a%d":1`, "}"),
		"keys in a table.toml":  count("services = [{", "a%d=1,", "}]"),
		"dotted keys.toml":      count("services = []\n", "a%d.b.c.d.e = 1          \n", ""),
		"tables by dots.toml":   count("services = []\n", "[a.b%d.c]   # ------------\n", ""),
		"keys twice.json":       fill(`{"services": []`, `,"services":[]`, "}"),
		"a long key.toml":       fill("", "a", " = 1"),
		"a long string.toml":    fill("services = '", "a", "'"),
		"a long escape.toml":    fill(`services = "`, `\u0001`, `"`),
		"one address.toml":      fill(one+"external_ips = [", "'1.1.1.1',", "]"),
		"addresses.toml":        count(one+"external_ips = [", "'fd00::%x',", "]"),
		"bad addresses.toml":    fill(one+"external_ips = [", "'x',    ", "]"),
		"endpoints.toml":        fill(one+"endpoints = [", "'1.1.1.1',", "]"),
		"endpoint ports.toml":   count(one+"endpoints = [{ address = '1.1.1.1', ports = {", "a%d=1,", "}}]"),
		"port names.toml":       misnamed(strings.Repeat("a", 50), 1000)(size),
		"long port names.toml":  misnamed(strings.Repeat("a", size/3), 2)(size),
		"services.toml":         fill("", one, ""),
		"checks.toml":           count("", "[[services]]\nname='a%d'\nports=[{port=80}]\nhealth_check={type='http'}\n", ""),
		"other checks.toml":     count("", "[[services]]\nname='a%[1]d'\nports=[{port=80}]\nhealth_check={type='tcp',expect='a%[1]d'}\n", ""),
		"expressions.toml":      count("", "[[services]]\nname='a'\nports=[{port=80}]\nhealth_check={type='tcp',expect='a{999}b%d{999}'}\n", ""),
		"warnings.toml":         count("", "[[services]]\nname = 'a%d'\nports = [{ port = 80 }]\n", ""),
		"cut off in lists.json": fill(`{"services": [`, "      1,", ""),
	}
}

// misnamed returns services with ports of which the endpoints have other names that
// are nearly the same.
func misnamed(name string, ports int) func(size int) string {
	return func(size int) string {
		var b strings.Builder
		for b.Len() < size {
			b.WriteString("[[services]]\nname = 'a'\nvips = ['10.96.0.1']\nports = [")
			for i := range ports {
				fmt.Fprintf(&b, "{ name = '%s%d', port = %d }, ", name, i, i+1)
			}
			b.WriteString("]\nendpoints = [{ address = '10.0.0.1', ports = {")
			for i := range 1000 {
				fmt.Fprintf(&b, " %sb%d = 1,", name[:min(len(name), 50)], i)
			}
			b.WriteString(" } }]\n")
		}
		return b.String()
	}
}

// allocated returns how many bytes are allocated for each byte of a text that is
// read. Garbage counts, so no more than that can be in use at any time.
func allocated(path, text string) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _ = read.Parse(path, []byte(text))
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc-before.TotalAlloc) / float64(len(text))
}

// No text takes many times the memory of a good file of its size. Up to five times
// is what the TOML library needs for a table of nothing but short keys.
func TestMemoryIsAFewTimesTheText(t *testing.T) {
	good := allocated("good.toml", manyServices(300))
	if good < 10 || good > 100 {
		t.Errorf("a good file takes %.0f times its size", good)
	}
	for name, text := range hostile() {
		if got := allocated(name, text); got > 5*good {
			t.Errorf("%s takes %.0f times its size; a good file takes %.0f times", name, got, good)
		}
	}
}

// A long list of addresses takes no more than 14 times its size, half of it in the TOML library, and 17.6 under the race
// detector. A list that grows as it is read takes 20 times its size.
func TestMemoryOfAddresses(t *testing.T) {
	var b strings.Builder
	b.WriteString("[[services]]\nname = 'a'\nports = [{ port = '1-1000' }]\nvips = [")
	for i := range 1 << 16 {
		fmt.Fprintf(&b, "'10.1.%d.%d', ", 100+i>>8%100, 100+i%100)
	}
	if got := allocated("addresses.toml", b.String()+"]"); got > 18 {
		t.Errorf("addresses take %.0f times their size", got)
	}
}

// cpu returns how long this process works to read a text, the least of some.
func cpu(t *testing.T, text string, times int) time.Duration {
	t.Helper()
	least := time.Hour
	for range times {
		before := worked(t)
		_, _ = read.Parse("a.toml", []byte(text))
		least = min(least, worked(t)-before)
	}
	return least
}

func worked(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	fatal.If(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// What is wrong with a broken file is found in a time that grows as the file does,
// and is like that of a good one.
func TestTimeOfBrokenFiles(t *testing.T) {
	const small = 1 << 18
	good := func(size int) string { return manyServices(size / 560) }
	for name, text := range map[string]func(size int) string{
		"an unknown key at the end": func(size int) string { return good(size) + "[x]\n" },
		"an unknown key everywhere": func(size int) string { return strings.ReplaceAll(good(size), "\nvips", "\nprot = 1\nvips") },
		"names of ports everywhere": misnamed(strings.Repeat("a", 50), 1000),
		"a string without an end":   func(size int) string { return good(size) + "x = '''\n" + good(size/4) },
	} {
		one, four := cpu(t, text(small), 2), cpu(t, text(4*small), 1)
		if four > 10*one+time.Second/2 {
			t.Errorf("%s: %v for 256 KiB, %v for 1 MiB", name, one, four)
		}
		if like := cpu(t, good(small), 1); one > 10*like+time.Second/2 {
			t.Errorf("%s: %v for 256 KiB; a good file takes %v", name, one, like)
		}
	}
}
