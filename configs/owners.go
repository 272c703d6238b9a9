package configs

import (
	"bytes"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"strings"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
	"svcproxy.dev/svcproxy/source/read"
)

// ownersName is the list of tables of who may claim what.
const ownersName = "owners"

// Most elements of what [[owners]] list: each file is compared with all of them.
const (
	maxOwners    = 256
	maxOwnerList = 1000
)

var (
	filePattern = decode.Matching(`a name without directory, in which * stands for any characters, such as "team-a-*.toml"`, isFilePattern).As(`^[^/]+$`)
	sourceURL   = decode.Matching(`a URL such as "https://config.example.net/team-a/", which with / at its end stands for all below it`, isSourceURL).As(`^[a-z][a-z0-9+.-]*:/.+$`)
	ownerUser   = decode.Matching(`the name of a user, or its number in quotes`, userName.MatchString).As("^" + userPattern + "$")
	namespaces  = decode.Matching(`the name of a namespace, or the beginning of names and *, such as "team-a-*"`, isNamespaces).As(`^[a-z0-9-]{0,63}[*]?$`)
	nodePorts   = decode.To(decode.Matching(`two ports, the lower one first, as in "30000-30099", or ""`, isPortRange).As(`^([0-9]{1,5}(-[0-9]{1,5})?)?$`), portRange)
)

// ownerFields are the keys of [[owners]].
var ownerFields = []decode.Field[read.Owner]{
	decode.Key("files", decode.Unique(filePattern), func(o *read.Owner) *[]string { return &o.Files }),
	decode.Key("sources", decode.Unique(sourceURL), func(o *read.Owner) *[]string { return &o.Sources }),
	decode.Key("users", decode.Unique(ownerUser), func(o *read.Owner) *[]string { return &o.Users }),
	decode.Key("addresses", decode.Unique(decode.Prefix), func(o *read.Owner) *[]netip.Prefix { return &o.Addresses }),
	decode.Key("node_ports", nodePorts, func(o *read.Owner) *read.PortRange { return &o.NodePorts }),
	decode.Key("namespaces", decode.Unique(namespaces), func(o *read.Owner) *[]string { return &o.Namespaces }),
	decode.Key("allow", decode.Unique(decode.Word("permission", read.Permissions...)), func(o *read.Owner) *[]string { return &o.Allow }),
}

var owners = decode.List(decode.TableOf(ownerFields, decode.Standard(ownerFields))).Instead(func(v any) string {
	if _, ok := v.(map[string]any); ok {
		return "write [[owners]]"
	}
	return ""
})

// ownersField is [[owners]].
var ownersField = field{Key: ownersName, Schema: owners.Schema, Read: func(r *decode.Reader, v any, s *Settings) {
	s.Owners, _ = owners.Read(r, v)
	for i := range s.Owners {
		checkOwner(r, i, &s.Owners[i])
	}
}}

// limitOwners has r refuse more than what each file can be compared with.
func limitOwners(r *decode.Reader) {
	r.Limit(ownersName, maxOwners, "")
	for _, key := range []string{"files", "users", "addresses", "namespaces"} {
		r.Limit(key, maxOwnerList, "")
	}
}

// checkOwner reports what no file can use.
func checkOwner(r *decode.Reader, i int, o *read.Owner) {
	problem := func(key, msg, hint string, warning bool) {
		r.Problem(source.Problem{Path: source.At(i, key), Msg: msg, Hint: hint, Warning: warning})
	}
	switch {
	case len(o.Files)+len(o.Sources) == 0:
		problem("files", fmt.Sprintf("owners[%d] has neither files nor sources", i), `write files = ["team-a-*.toml"], say`, false)
	case len(o.Namespaces) == 0:
		problem("namespaces", fmt.Sprintf("owners[%d] has no namespaces, so its files can have no service", i), `write namespaces = ["default"], say, or ["*"] for all`, true)
	case len(o.Files) == 0 && len(o.Users) > 0:
		problem("users", "users does nothing", "it is for files, and there are none", true)
	}
}

func isFilePattern(s string) bool {
	_, err := path.Match(s, "")
	return err == nil && s != "" && len(s) <= read.MaxName && isPrintable(s) && !strings.Contains(s, "/")
}

func isSourceURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Scheme != "" && u.Host+u.Path != "" && u.RawQuery == "" && u.Fragment == "" && isPrintable(s)
}

func isNamespaces(s string) bool {
	beginning, more := strings.CutSuffix(s, "*")
	return source.IsLabel(s) || more && (beginning == "" || source.IsLabel(beginning+"a"))
}

func isPortRange(s string) bool {
	_, ok := read.ParsePortRange(s)
	return ok
}

func portRange(s string) read.PortRange {
	r, _ := read.ParsePortRange(s)
	return r
}

// writeOwners writes [[owners]].
func writeOwners(b *bytes.Buffer, list []read.Owner) {
	for i := range list {
		b.WriteString("\n[[owners]]\n")
		writeFields(b, ownerFields, &list[i])
	}
}
