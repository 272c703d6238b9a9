package http

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// maxURL is the maximum length of a URL, in bytes. URLs are shown in status, faults and logs as the names of texts.
const maxURL = 1024

// ParseURL parses the URL of a service file or an index. It accepts only one spelling of each URL, because [[owners]] match
// texts by their URLs.
func ParseURL(text string) (*url.URL, error) {
	if len(text) > maxURL {
		return nil, fmt.Errorf("a URL has more than %d bytes", maxURL)
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, errors.New("want https://HOST/PATH")
	case u.User != nil:
		return nil, errors.New("a URL has no user or password; write bearer_file")
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(text, "#"):
		return nil, errors.New("a URL has neither ? nor #")
	case strings.ContainsFunc(text, isUnplain) || u.String() != text || path.Clean(u.Path) != u.Path:
		return nil, errors.New(`write it with letters, digits and -._~/+,=@ only, without ".", ".." and "//"`)
	case strings.ToLower(u.Host) != u.Host || !isPort(u):
		return nil, errors.New("write the host in lower case, and a port only if it is not the usual one")
	case path.Ext(u.Path) != ".toml" && path.Ext(u.Path) != ".json":
		return nil, errors.New("want a name that ends in .toml or .json")
	}
	return u, nil
}

// isUnplain reports whether a character of a URL has another spelling, or a special meaning in a shell.
func isUnplain(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-._~/:[]+,=@", c)
}

// isPort reports whether a URL has either no port, or a valid port that is not the default of its scheme.
func isPort(u *url.URL) bool {
	port := u.Port()
	if port == "" {
		return !strings.HasSuffix(u.Host, ":")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0 && port[0] != '0' && port != usualPorts[u.Scheme]
}

var usualPorts = map[string]string{"http": "80", "https": "443"}

// sameOrigin reports whether two URLs have the same scheme, host and port.
func sameOrigin(a, b *url.URL) bool {
	port := func(u *url.URL) string {
		if p := u.Port(); p != "" {
			return p
		}
		return usualPorts[u.Scheme]
	}
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

// dirOf returns the directory of a URL, with a trailing slash: the prefix of the names of all texts in or below it.
func dirOf(name string) string { return name[:strings.LastIndexByte(name, '/')+1] }

// entryName resolves the URL of an index entry. The result must be in or below the directory of the index, so that the index
// of one team cannot list the texts of another.
func entryName(index *url.URL, ref string) (string, error) {
	if len(ref) > maxURL {
		return "", fmt.Errorf("a URL has more than %d bytes", maxURL)
	}
	u, err := index.Parse(ref)
	if err != nil || ref == "" {
		return "", errors.New("want a URL, such as \"web.toml\"")
	}
	name, own := u.String(), index.String()
	if !strings.HasPrefix(name, dirOf(own)) || name == own {
		return "", errors.New("it is not below " + dirOf(own))
	}
	if _, err := ParseURL(name); err != nil {
		return "", err
	}
	return name, nil
}
