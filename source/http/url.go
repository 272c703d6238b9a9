package http

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// maxURL is the size of the longest URL, in bytes: it names a text in status, faults and logs.
const maxURL = 1024

// ParseURL reads the URL of a service file or of an index. Each has one way to be written, because it is a name, by
// which [[owners]] judge the text.
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

// isUnplain reports whether a character of a URL can be written in another way, or means something to a shell.
func isUnplain(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-._~/:[]+,=@", c)
}

// isPort reports whether a URL has no port, or one that must be written.
func isPort(u *url.URL) bool {
	port := u.Port()
	if port == "" {
		return !strings.HasSuffix(u.Host, ":")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0 && port[0] != '0' && port != usualPorts[u.Scheme]
}

var usualPorts = map[string]string{"http": "80", "https": "443"}

// sameOrigin reports whether two URLs are of one server: scheme, host and port.
func sameOrigin(a, b *url.URL) bool {
	port := func(u *url.URL) string {
		if p := u.Port(); p != "" {
			return p
		}
		return usualPorts[u.Scheme]
	}
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

// dirOf returns the beginning of the names of all that lies in the directory of a URL or below.
func dirOf(name string) string { return name[:strings.LastIndexByte(name, '/')+1] }

// entryName returns the name of an entry of an index. It lies in the directory of the index or below, so that one team's
// index cannot name the texts of another.
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
