package read

import (
	"net/netip"
	"net/url"
	"os/user"
	"path"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// An Owner is a share of this host: what services of some files or sources may claim. What it does not list they may not.
type Owner struct {
	Files   []string // names of files, as path.Match reads them
	Sources []string // URLs of texts; one that ends in / is of all that lie below
	Users   []string // whose files, by name or number; empty: anybody's

	Addresses  []netip.Prefix
	NodePorts  PortRange // also of health check ports
	Namespaces []string  // or the beginning of names, and *
	Allow      []string  // of Permissions
}

// Permissions are what needs more than an address or a port: checks that run programs, announcing addresses, and
// endpoints that are fetched from a URL.
var Permissions = []string{mayExec, mayAnnounce, mayFetch}

const (
	mayExec     = "exec"
	mayAnnounce = "announce"
	mayFetch    = "fetch"
)

// A PortRange is ports in a row; the zero PortRange has none.
type PortRange struct{ First, Last uint16 }

// ParsePortRange reads what String writes, and a single port. It returns false for anything else.
func ParsePortRange(text string) (r PortRange, ok bool) {
	if text == "" {
		return r, true
	}
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	first, err := strconv.ParseUint(from, 10, 16)
	last, err2 := strconv.ParseUint(to, 10, 16)
	if err != nil || err2 != nil || first == 0 || first > last {
		return r, false
	}
	return PortRange{uint16(first), uint16(last)}, true
}

// String returns the range as settings have it: "30000-30099", and "" for none.
func (r PortRange) String() string {
	if r == (PortRange{}) {
		return ""
	}
	return strconv.Itoa(int(r.First)) + "-" + strconv.Itoa(int(r.Last))
}

// Has reports whether a port is in the range.
func (r PortRange) Has(port uint16) bool { return r.First <= port && port <= r.Last && port != 0 }

// An Origin says where a text is from. In the zero Origin the owner of the file is not known.
type Origin struct {
	Owned bool   // UID owns the file, and alone says what is in it
	UID   uint32 // of the file itself, where its name is a link
	Loose bool   // it is not Owned because others may write it

	// Elsewhere: the file is not where the daemon reads it, and may get another owner there. If no owner matches it by
	// user, it has the share of the first owner that matches its name.
	Elsewhere bool

	// Accepted: the text was in use before. No share removes what was accepted, since a mistake in the settings would
	// cause an outage.
	Accepted bool

	URL    string // of a text of a server; empty: it is a file
	Signed bool   // the signature of such a text was verified
}

// user returns who owns the file that a text was read from; -1, also where it could not be read: not known; -2: it is of a server.
func (o Origin) user(err error) int64 {
	switch {
	case o.Accepted, err != nil:
		return -1
	case o.URL != "":
		return -2
	}
	return int64(o.UID)
}

// vouched reports whether it is known who wrote a text.
func (o Origin) vouched() bool { return o.Owned || o.Signed }

// ownerOf returns the index of the owner whose share a text with this name has: the first that matches; -1: there is none.
func ownerOf(owners []Owner, name string, from Origin) int {
	if from.URL != "" {
		return slices.IndexFunc(owners, func(o Owner) bool { return o.hasSource(from.URL) })
	}
	i := slices.IndexFunc(owners, func(o Owner) bool { return o.hasFile(name) && o.hasUser(from) })
	if i < 0 && from.Elsewhere {
		i = slices.IndexFunc(owners, func(o Owner) bool { return o.hasFile(name) })
	}
	return i
}

func (o *Owner) hasFile(name string) bool {
	return slices.ContainsFunc(o.Files, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}

func (o *Owner) hasUser(from Origin) bool {
	return len(o.Users) == 0 || from.Owned && slices.ContainsFunc(o.Users, func(name string) bool {
		uid, ok := userID(name)
		return ok && uid == from.UID
	})
}

// userID returns the number of a user, who is named by it or is in /etc/passwd.
func userID(name string) (uint32, bool) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(n), true
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(u.Uid, 10, 32)
	return uint32(n), err == nil
}

// hasSource reports whether a text lies in one of the sources.
func (o *Owner) hasSource(text string) bool {
	return isPlainURL(text) && slices.ContainsFunc(o.Sources, func(s string) bool {
		return text == s || strings.HasSuffix(s, "/") && strings.HasPrefix(text, s)
	})
}

// isPlainURL reports whether a URL names a text in one way only: ".." in it, escaped or not, may lead out of where its
// beginning says that it lies.
func isPlainURL(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	clean := path.Clean("/" + u.Path)
	return clean == "/" || u.Path == clean || u.Path == clean+"/"
}

func (o *Owner) hasAddress(a netip.Addr) bool {
	return slices.ContainsFunc(o.Addresses, func(p netip.Prefix) bool { return p.Contains(a) })
}

func (o *Owner) hasNamespace(name string) bool {
	return slices.ContainsFunc(o.Namespaces, func(s string) bool {
		beginning, more := strings.CutSuffix(s, "*")
		return name == s || more && strings.HasPrefix(name, beginning)
	})
}

// excerpts returns strings of settings as they may stand in a message, the first few of many.
func excerpts(list []string) string {
	const most = 4
	words := make([]string, min(len(list), most))
	for i := range words {
		words[i] = source.Excerpt(list[i])
	}
	if len(list) > most {
		words = append(words, "one of "+strconv.Itoa(len(list)-most)+" more")
	}
	return source.Either(words)
}
