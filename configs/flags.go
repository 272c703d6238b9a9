package configs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// Flags are settings given on the command line. They win over svcproxy.toml, also
// over a version of it that is read later: Apply may be called again.
type Flags struct {
	flags []*flag
}

// usages say in the help what the keys at the top mean.
var usages = map[string]string{
	"mode":                 "kernel subsystem to use: " + source.Either(modeSettings()),
	"sources":              "where services come from, one or more of " + strings.Join(sourceNames(), ", "),
	"node_name":            "name of this node (default: the host name)",
	"zone":                 "zone of this node",
	"families":             "address families to program",
	"local_cidrs":          "sources that reach VIPs with their own address",
	"local_interfaces":     "the same by input interface: names, or prefixes ended by *",
	"masquerade":           "whose VIP traffic is masqueraded: auto, all or never",
	"masquerade_bit":       "bit of the packet mark to use, 0 to 31",
	"service_cidrs":        "ranges that VIPs come from; the rest of them is refused",
	"node_port_addresses":  "addresses that serve node ports: primary, all or CIDRs",
	"localhost_node_ports": "serve node ports on 127.0.0.1 too (" + able(canServeLocalhost) + " mode only)",
	"http_address":         "address of /metrics and the health checks; empty: none",
	"metrics_address":      "address of /metrics in place of http_address",
	"status_address":       "address of the status page; auto: http_address, if that is loopback; empty: none",
	"http_names":           "names of this host, besides its host name, for requests to these addresses",
	"kubeconfig":           "file that says where the API server is (default: the service account of the pod, then $KUBECONFIG)",
}

// Bind adds the flags of these keys to fs; without keys, of all at the top of
// svcproxy.toml, and kubeconfig. A flag has the name of its key, with - for _.
func (f *Flags) Bind(fs *pflag.FlagSet, keys ...string) {
	defaults := standard() // help is the same on every host
	for _, field := range flagFields() {
		if len(keys) > 0 && !slices.Contains(keys, field.Key) {
			continue
		}
		fl := &flag{field: field, standard: field.Value(&defaults)}
		f.flags = append(f.flags, fl)
		bound := fs.VarPF(fl, strings.ReplaceAll(field.Key, "_", "-"), "", usages[field.Key])
		if fl.Type() == "bool" {
			bound.NoOptDefVal = "true"
		}
	}
}

// flagFields are the keys that have a flag. The path of a kubeconfig is given on
// the command line of all that read one, so it is where one looks for it.
func flagFields() []field {
	fields := slices.Clone(topFields)
	for _, s := range sections {
		for _, f := range s.fields {
			if f.Key == "kubeconfig" {
				fields = append(fields, f)
			}
		}
	}
	return fields
}

// Apply puts what was given on the command line into s.
func (f *Flags) Apply(s *Settings) {
	for _, fl := range f.flags {
		if fl.given != nil {
			fl.field.Read(fl.reader(), fl.given, s)
		}
	}
}

// A flag is one key as a flag. It implements pflag.Value.
type flag struct {
	field    field
	standard any
	given    any // as a file would have it; nil: nothing was given
}

// Set takes a value after the same checks as a file's. A list is given with
// commas, by repeating the flag, or both.
func (fl *flag) Set(text string) error {
	v := fl.value(text)
	if earlier, ok := fl.given.([]any); ok {
		v = append(slices.Clone(earlier), v.([]any)...)
	}
	r := fl.reader()
	scratch := Default()
	fl.field.Read(r, v, &scratch)
	if faults := r.Faults(nil); len(faults) > 0 {
		return joined(faults)
	}
	fl.given = v
	return nil
}

func joined(faults []source.Fault) error {
	texts := make([]string, len(faults))
	for i, f := range faults {
		texts[i] = f.String()
	}
	return errors.New(strings.Join(texts, "; "))
}

// reader returns a Reader whose faults name the key.
func (fl *flag) reader() *decode.Reader { return decode.NewReader(source.At(fl.field.Key)) }

// value returns text as the file's language would give it. What does not read as
// the type of the key stays a string, about which the key complains.
func (fl *flag) value(text string) any {
	switch fl.standard.(type) {
	case int:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n
		}
	case bool:
		if b, err := strconv.ParseBool(text); err == nil {
			return b
		}
	case []string, []netip.Prefix:
		list := []any{}
		for _, w := range strings.FieldsFunc(text, func(c rune) bool { return c == ',' }) {
			list = append(list, strings.TrimSpace(w))
		}
		return list
	}
	return text
}

// String returns the value as the command line has it.
func (fl *flag) String() string {
	s := Default()
	if fl.given == nil {
		return shown(fl.standard)
	}
	fl.field.Read(fl.reader(), fl.given, &s)
	return shown(fl.field.Value(&s))
}

func shown(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case []string:
		return strings.Join(v, ",")
	case []netip.Prefix:
		return strings.Join(words(v), ",")
	}
	return fmt.Sprint(v)
}

// Type names the type in the help.
func (fl *flag) Type() string {
	switch fl.standard.(type) {
	case int:
		return "int"
	case bool:
		return "bool"
	case []string, []netip.Prefix:
		return "list"
	}
	return "string"
}
