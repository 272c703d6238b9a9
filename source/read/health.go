package read

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// A writtenCheck is a source.HealthCheck as a file writes it.
type writtenCheck struct {
	source.HealthCheck
	none bool // type = "none"
}

// checkWords are the types; 0 is "none".
var checkWords = decode.Values("type of check", checkTypes()...)

func checkTypes() (list []source.CheckType) {
	for i := range source.CheckTypes {
		list = append(list, source.CheckType(i+1))
	}
	return append(list, 0)
}

var (
	checkTime = decode.Duration(source.MinCheckTime, source.MaxCheckTime)
	inARow    = decode.Number[uint8](1, 255)

	portNumber = decode.Number[uint16](1, 65535) // of services and endpoints too

	allFailed = decode.NoOrYes("choice for when all fail", "use_all", "refuse")
	closing   = decode.Values("choice of connections to close", source.CloseNever, source.CloseFailed, source.CloseAlways)

	minTLS = decode.Values("version of TLS", source.AnyTLS, source.TLS10, source.TLS11, source.TLS12, source.TLS13).Instead(func(v any) string {
		if f, ok := v.(float64); ok {
			return fmt.Sprintf("write %q", strconv.FormatFloat(f, 'f', 1, 64))
		}
		return ""
	})

	// yes reads a bool that is kept the other way round.
	yes = decode.To(decode.Bool, func(b bool) bool { return !b })
)

// checkFields are the keys of a health check.
var checkFields = []decode.Field[writtenCheck]{
	decode.Need(decode.Field[writtenCheck]{Key: "type", Schema: checkWords.Schema, Read: func(r *decode.Reader, v any, c *writtenCheck) {
		t, ok := checkWords.Read(r, v)
		c.Type, c.none = t, ok && t == 0
	}}),
	decode.Key("port", portNumber, func(c *writtenCheck) *uint16 { return &c.Port }),
	decode.Key("path", decode.Text, func(c *writtenCheck) *string { return &c.Path }),
	decode.Key("method", decode.Text.As(`^[A-Z]{1,20}$`), func(c *writtenCheck) *string { return &c.Method }),
	decode.Key("host", decode.Text, func(c *writtenCheck) *string { return &c.Host }),
	decode.Key("expect_status", statuses, func(c *writtenCheck) *[]source.StatusRange { return &c.ExpectStatus }),
	decode.Key("expect_body", decode.Text, func(c *writtenCheck) *string { return &c.ExpectBody }),
	decode.Key("tls", decode.Bool, func(c *writtenCheck) *bool { return &c.TLS }),
	decode.Key("server_name", decode.Text, func(c *writtenCheck) *string { return &c.ServerName }),
	decode.Key("verify", yes, func(c *writtenCheck) *bool { return &c.Insecure }),
	decode.Key("min_tls", minTLS, func(c *writtenCheck) *source.TLSVersion { return &c.MinTLS }),
	decode.Key("service", decode.Text, func(c *writtenCheck) *string { return &c.GRPCService }),
	decode.Key("send", escaped, func(c *writtenCheck) *string { return &c.Send }),
	decode.Key("expect", decode.Text, func(c *writtenCheck) *string { return &c.Expect }),
	decode.Key("command", arguments, func(c *writtenCheck) *[]string { return &c.Command }),
	decode.Key("interval", checkTime.Or(5*time.Second), func(c *writtenCheck) *time.Duration { return &c.Interval }),
	decode.Key("interval_down", checkTime, func(c *writtenCheck) *time.Duration { return &c.IntervalDown }),
	decode.Key("timeout", checkTime, func(c *writtenCheck) *time.Duration { return &c.Timeout }),
	decode.Key("rise", inARow.Or(2), func(c *writtenCheck) *uint8 { return &c.Rise }),
	decode.Key("fall", inARow.Or(3), func(c *writtenCheck) *uint8 { return &c.Fall }),
	decode.Key("source", addrOrNone, func(c *writtenCheck) *netip.Addr { return &c.Source }),
	decode.Key("all_failed", allFailed, func(c *writtenCheck) *bool { return &c.Refuse }),
}

// typesOf are the types that a key is of; one that is not here is of all.
var typesOf = map[string][]source.CheckType{
	"path":          {source.CheckHTTP, source.CheckHTTPS},
	"method":        {source.CheckHTTP, source.CheckHTTPS},
	"host":          {source.CheckHTTP, source.CheckHTTPS},
	"expect_status": {source.CheckHTTP, source.CheckHTTPS},
	"expect_body":   {source.CheckHTTP, source.CheckHTTPS},
	"tls":           {source.CheckGRPC},
	"server_name":   {source.CheckHTTPS, source.CheckGRPC},
	"verify":        {source.CheckHTTPS, source.CheckGRPC},
	"min_tls":       {source.CheckHTTPS, source.CheckGRPC},
	"service":       {source.CheckGRPC},
	"send":          {source.CheckTCP, source.CheckUDP},
	"expect":        {source.CheckTCP, source.CheckUDP},
	"command":       {source.CheckExec},
	"source":        {source.CheckTCP, source.CheckHTTP, source.CheckHTTPS, source.CheckGRPC, source.CheckUDP},
}

// addrOrNone reads an address, or "" for none.
var addrOrNone = decode.Kind[netip.Addr]{
	Schema: decode.Schema{Type: "string", Pattern: `^[0-9a-fA-F:.]*$`},
	Read: func(r *decode.Reader, v any) (netip.Addr, bool) {
		if v == "" {
			return netip.Addr{}, true
		}
		return decode.Addr.Read(r, v)
	},
}

// healthCheck reads a health check. One at fault has no type.
var healthCheck = decode.Kind[writtenCheck]{Read: readCheck, Schema: decode.TableOf(checkFields, standardCheck()).Schema}.Instead(checkHint)

func readCheck(r *decode.Reader, v any) (writtenCheck, bool) {
	c := decode.Standard(checkFields)
	if !decode.Table(r, v, checkFields, &c) {
		return c, false
	}
	table, _ := v.(map[string]any)
	switch {
	case c.none && len(table) > 1:
		r.Problem(source.Problem{Path: source.At("type"), Msg: `the other keys of a check do nothing with type = "none"`, Warning: true})
	case c.Type != 0:
		c.foreignKeys(r, table)
		c.fill()
	}
	return c, true
}

// foreignKeys reports the keys that are not of the type.
func (c *writtenCheck) foreignKeys(r *decode.Reader, table map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(table)) {
		types := typesOf[key]
		if types == nil || slices.Contains(types, c.Type) {
			continue
		}
		words := make([]string, len(types))
		for i, t := range types {
			words[i] = t.String()
		}
		r.Problem(source.Problem{Path: source.At(key), Msg: fmt.Sprintf("%s is no key of a check of type %s", key, c.Type), Hint: "it is for " + source.Either(words)})
	}
}

// fill sets what is not written.
func (c *writtenCheck) fill() {
	c.IntervalDown = cmp.Or(c.IntervalDown, c.Interval)
	c.Timeout = cmp.Or(c.Timeout, min(2*time.Second, c.Interval))
	if c.Type != source.CheckHTTP && c.Type != source.CheckHTTPS {
		return
	}
	c.Path = cmp.Or(c.Path, "/")
	c.Method = cmp.Or(c.Method, "GET")
	if c.ExpectStatus == nil {
		c.ExpectStatus = []source.StatusRange{{First: 200, Last: 399}}
	}
}

// standardCheck is one of which nothing is written, with the keys of http.
func standardCheck() writtenCheck {
	c := decode.Standard(checkFields)
	c.Type = source.CheckHTTP
	c.fill()
	return c
}

// statuses reads a list of statuses and ranges of them. An empty one is not nil: it is written.
var statuses = decode.To(decode.List(status), func(list []source.StatusRange) []source.StatusRange {
	if list == nil {
		return []source.StatusRange{}
	}
	return list
}).Instead(func(v any) string {
	switch v := v.(type) {
	case int64:
		return fmt.Sprintf("want a list: [%q]", strconv.FormatInt(v, 10))
	}
	return ""
})

var leastStatus, mostStatus int64 = 100, 599

// status reads 200, "200" or "200-399".
var status = decode.Kind[source.StatusRange]{
	Schema: decode.Schema{AnyOf: []decode.Schema{
		{Type: "string", Pattern: `^[1-5][0-9][0-9](-[1-5][0-9][0-9])?$`},
		{Type: "integer", Minimum: &leastStatus, Maximum: &mostStatus},
	}},
	Read: func(r *decode.Reader, v any) (source.StatusRange, bool) {
		if n, ok := v.(int64); ok {
			v = strconv.FormatInt(n, 10)
		}
		text, ok := decode.Text.Read(r, v)
		if !ok {
			return source.StatusRange{}, false
		}
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			last = first
		}
		a, err := strconv.ParseUint(first, 10, 16)
		b, err2 := strconv.ParseUint(last, 10, 16)
		if err != nil || err2 != nil || a == 0 || b == 0 {
			r.Fault(source.Excerpt(text)+" is neither a status nor a range of them", `want one such as "200" or "200-399"`)
			return source.StatusRange{}, false
		}
		return source.StatusRange{First: uint16(a), Last: uint16(b)}, true
	},
}

// arguments reads a program and its arguments. A whole command line is what people try first.
var arguments = decode.List(decode.Text).Instead(func(v any) string {
	line, _ := v.(string)
	words := strings.Fields(line)
	switch {
	case len(words) < 2:
		return ""
	case len(line) > 200 || strings.ContainsAny(line, "'\"\\`$|&;<>"):
		return "no shell runs it: write a program and its arguments as a list, or a script with what a shell is to do"
	}
	for i := range words {
		words[i] = strconv.Quote(words[i])
	}
	return "no shell runs it: write command = [" + strings.Join(words, ", ") + "]"
})

// escapes match a text as far as all backslashes in it begin an escape.
var escapes = regexp.MustCompile(`^([^\\]|\\[rnt\\]|\\x[0-9a-fA-F]{2})*`)

// escaped reads a text in which \r, \n, \t, \\ and \xHH stand for a byte each.
var escaped = decode.Kind[string]{
	Schema: decode.Schema{Type: "string", Pattern: escapes.String() + "$"},
	Read: func(r *decode.Reader, v any) (string, bool) {
		text, ok := decode.Text.Read(r, v)
		if !ok || !strings.Contains(text, `\`) {
			return text, ok
		}
		if rest := text[len(escapes.FindString(text)):]; rest != "" {
			r.Fault("send has "+source.Excerpt(rest[:min(len(rest), 4)])+", not an escape", `want \r, \n, \t, \\ or \x and two hexadecimal digits, in single quotes`)
			return "", false
		}
		var b []byte
		for text != "" {
			c, multibyte, rest, _ := strconv.UnquoteChar(text, 0)
			if text = rest; multibyte {
				b = utf8.AppendRune(b, c)
			} else {
				b = append(b, byte(c))
			}
		}
		return string(b), true
	},
}
