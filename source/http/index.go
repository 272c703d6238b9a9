package http

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// maxEntries is how many texts an index may list.
const maxEntries = 100_000

// An index is a list of texts.
type index struct {
	version uint64
	entries []entry // sorted by name
}

// An entry is one text of an index.
type entry struct {
	name  string
	sum   [sha256.Size]byte
	share int // per cent of hosts that use it
}

const everyone = 100

// isIndex reports whether a JSON text is an index, which has the key "files", or a service file, which has "services". Any
// other JSON, such as an error message of the server, is an error. Otherwise it would replace all texts of the index.
func isIndex(data []byte) (bool, error) {
	lines := json.NewDecoder(bytes.NewReader(data))
	if err := begin(lines, '{'); err != nil {
		return false, err
	}
	for lines.More() {
		key, err := lines.Token()
		if err != nil {
			return false, brief(err)
		}
		if key == "files" || key == "services" {
			return key == "files", nil
		}
		var skipped json.RawMessage
		if err := lines.Decode(&skipped); err != nil {
			return false, brief(err)
		}
	}
	return false, errors.New("it is neither an index, which has files, nor a service file, which has services")
}

// parseIndex parses the index at a URL. It checks the number of entries while it reads, before it allocates them.
func parseIndex(at *url.URL, data []byte) (ix index, err error) {
	lines := json.NewDecoder(bytes.NewReader(data))
	lines.DisallowUnknownFields() // a misspelt "canary" must not roll a change out to all hosts
	if err := begin(lines, '{'); err != nil {
		return index{}, err
	}
	seen := map[json.Token]bool{}
	for lines.More() {
		key, err := lines.Token()
		switch {
		case err != nil:
		case seen[key]:
			err = fmt.Errorf("it has %v twice", key)
		case key == "version":
			err = lines.Decode(&ix.version)
		case key == "files":
			ix.entries, err = parseEntries(at, lines)
		default:
			err = fmt.Errorf("unknown key %s", source.Excerpt(fmt.Sprint(key)))
		}
		if err != nil {
			return index{}, brief(err)
		}
		seen[key] = true
	}
	if _, err := lines.Token(); err != nil {
		return index{}, errors.New("it is truncated")
	}
	if _, err := lines.Token(); err != io.EOF {
		return index{}, errors.New("it has more text after its end")
	}
	if ix.version == 0 || !seen["files"] {
		return index{}, errors.New("want version, a number from 1 on, and files")
	}
	slices.SortFunc(ix.entries, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	for i := 1; i < len(ix.entries); i++ {
		if ix.entries[i].name == ix.entries[i-1].name {
			return index{}, fmt.Errorf("it lists %s twice", ix.entries[i].name)
		}
	}
	return ix, nil
}

// begin consumes an opening bracket.
func begin(lines *json.Decoder, bracket json.Delim) error {
	token, err := lines.Token()
	if err == nil && token != bracket {
		err = fmt.Errorf("want %v", bracket)
	}
	if err != nil {
		return brief(err)
	}
	return nil
}

func parseEntries(at *url.URL, lines *json.Decoder) (entries []entry, err error) {
	if err := begin(lines, '['); err != nil {
		return nil, err
	}
	for lines.More() {
		if len(entries) == maxEntries {
			return nil, fmt.Errorf("it lists more than %d texts", maxEntries)
		}
		e, err := parseEntry(at, lines)
		if err != nil {
			return nil, fmt.Errorf("files[%d]: %w", len(entries), err)
		}
		entries = append(entries, e)
	}
	_, err = lines.Token()
	return entries, err
}

func parseEntry(at *url.URL, lines *json.Decoder) (e entry, err error) {
	var raw struct {
		URL    string  `json:"url"`
		SHA256 string  `json:"sha256"`
		Canary *string `json:"canary"`
	}
	if err := lines.Decode(&raw); err != nil {
		return entry{}, err
	}
	if e.name, err = entryName(at, raw.URL); err != nil {
		return entry{}, fmt.Errorf("url %s: %w", source.Excerpt(raw.URL), err)
	}
	sum, err := hex.DecodeString(raw.SHA256)
	if err != nil || len(sum) != len(e.sum) {
		return entry{}, fmt.Errorf("sha256 is %s; want 64 hexadecimal digits", source.Excerpt(raw.SHA256))
	}
	copy(e.sum[:], sum)
	e.share = everyone
	if raw.Canary != nil {
		if e.share, err = parseShare(*raw.Canary); err != nil {
			return entry{}, err
		}
	}
	return e, nil
}

// parseShare parses a percentage, such as "5%".
func parseShare(text string) (int, error) {
	number, isShare := strings.CutSuffix(text, "%")
	n, err := strconv.ParseUint(number, 10, 8)
	if !isShare || err != nil || n > everyone {
		return 0, fmt.Errorf(`canary is %s; want "0%%" to "100%%"`, source.Excerpt(text))
	}
	return int(n), nil
}

// covers reports whether a host is in the canary share of an entry. A larger share includes all hosts of a smaller one.
// Different entries start with different hosts.
func (e *entry) covers(host string) bool {
	sum := sha256.Sum256([]byte(host + "\x00" + e.name))
	return e.share == everyone || binary.BigEndian.Uint64(sum[:])%everyone < uint64(e.share)
}

// maxMessage is the most that an error quotes from an answer, in bytes.
const maxMessage = 300

// brief escapes and shortens an error whose text may come from the server, so that it can be logged.
func brief(err error) error {
	text := source.Printable(err.Error())
	if len(text) <= maxMessage {
		return errors.New(text)
	}
	return errors.New(strings.ToValidUTF8(text[:maxMessage], "") + "...")
}
