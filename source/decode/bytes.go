package decode

import (
	"fmt"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// A ByteSize is a number of bytes.
type ByteSize int

var byteUnits = []struct {
	name  string
	bytes ByteSize
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// String returns the size as settings have it, such as "16MiB".
func (b ByteSize) String() string {
	for _, u := range byteUnits {
		if b >= u.bytes && b%u.bytes == 0 {
			return strconv.Itoa(int(b/u.bytes)) + u.name
		}
	}
	return "0B"
}

// Bytes reads a number of bytes with its unit, such as "16MiB", from least to most.
func Bytes(least, most ByteSize) Kind[ByteSize] {
	return Kind[ByteSize]{Schema: Schema{Type: "string", Pattern: "^[0-9]+([KMG]i)?B$"}, Read: func(r *Reader, v any) (ByteSize, bool) {
		text, ok := as[string](r, v, `want a size with its unit, such as "16MiB"`)
		if !ok {
			return 0, false
		}
		b, ok := parseBytes(text)
		switch {
		case !ok:
			r.Fault(fmt.Sprintf("%s is %s, which is not a size", r.name(), source.Excerpt(text)), `want a number and B, KiB, MiB or GiB, such as "16MiB"`)
		case b < least || b > most:
			r.Fault(fmt.Sprintf("%s is %s", r.name(), source.Excerpt(text)), fmt.Sprintf("want %s to %s", least, most))
			ok = false
		}
		return b, ok
	}}
}

func parseBytes(text string) (ByteSize, bool) {
	for _, u := range byteUnits {
		number, is := strings.CutSuffix(text, u.name)
		if !is {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 31)
		return ByteSize(n) * u.bytes, err == nil
	}
	return 0, false
}
