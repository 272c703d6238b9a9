package lab

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A view is a command that lists kernel objects.
type view struct {
	command []string
	sorted  bool                // the order of the lines means nothing
	flatten func(string) string // nil: each line tells by itself where it belongs
}

var views = []view{
	{command: []string{"iptables-nft-save"}},
	{command: []string{"ip6tables-nft-save"}},
	{command: []string{"iptables-legacy-save"}},
	{command: []string{"ip6tables-legacy-save"}},
	{command: []string{"ipset", "save"}, sorted: true},
	{command: []string{"nft", "list", "ruleset"}, flatten: flattenRuleset},
	{command: []string{"ip", "-brief", "link"}, sorted: true},
	{command: []string{"ip", "rule"}},
	{command: []string{"ip", "-6", "rule"}},
}

var (
	// ours are the names that docs/modes.md gives to svcproxy.
	ours = regexp.MustCompile(`\bSVCP-|^table ip6? svcproxy(-hooks)?:|^svcproxy0\b`)

	// counters are what differs although nothing has changed: the address of a card is random too.
	counters = regexp.MustCompile(`\[\d+:\d+\]|packets \d+ bytes \d+|\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b`)

	// nothing matches lines that say nothing: comments, the frame of a table, the
	// built-in chains of a table that is there but empty, and in nft's listing
	// the tables of iptables-nft.
	nothing = regexp.MustCompile(`^#|^\*|^COMMIT$|^:[A-Z]+ ACCEPT |^table ip6? (filter|nat|mangle|raw|security):|^$`)
)

// Snapshot lists the kernel objects of a host: what is foreign to svcproxy, and
// what is its own, without comments and counters.
func Snapshot(h *Host) (foreign, own []string, err error) {
	for _, v := range views {
		out, err := h.Run(v.command[0], v.command[1:]...)
		if err != nil {
			return nil, nil, fmt.Errorf("taking a snapshot of %s: %w", h.Role, err)
		}
		lines := v.lines(out)
		own = append(own, selectLines(lines, true)...)
		foreign = append(foreign, selectLines(lines, false)...)
	}
	return foreign, own, nil
}

// lines returns the lines of a listing that say something, each after the command and the table it is from.
func (v view) lines(out string) []string {
	var lines []string
	var table string
	if v.flatten != nil {
		out = v.flatten(out)
	}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = name
		}
		if !nothing.MatchString(line) {
			line = counters.ReplaceAllString(line, "")
			lines = append(lines, strings.Join(v.command, " ")+" "+table+"\t"+strings.TrimSpace(line))
		}
	}
	if v.sorted {
		slices.Sort(lines)
	}
	return lines
}

func selectLines(lines []string, own bool) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		_, text, _ := strings.Cut(line, "\t")
		return ours.MatchString(text) != own
	})
}

// Unchanged compares the foreign objects of a host with an earlier snapshot.
func Unchanged(h *Host, before []string) error {
	now, _, err := Snapshot(h)
	if err == nil {
		err = Difference(before, now)
	}
	if err != nil {
		return fmt.Errorf("what others have in the kernel of %s: %w", h.Role, err)
	}
	return nil
}

// Difference says how two lists of a snapshot differ; nil: not at all.
func Difference(before, now []string) error {
	if slices.Equal(before, now) {
		return nil
	}
	var errs []error
	for _, line := range before {
		if !slices.Contains(now, line) {
			errs = append(errs, fmt.Errorf("gone: %s", line))
		}
	}
	for _, line := range now {
		if !slices.Contains(before, line) {
			errs = append(errs, fmt.Errorf("new: %s", line))
		}
	}
	if errs == nil {
		return errors.New("the same lines in another order or number")
	}
	return errors.Join(errs...)
}

// dates matches what a listing says of itself.
var dates = regexp.MustCompile(`(?m)^# .*\n`)

// Listing is all that a Snapshot looks at, and addresses, line for line as the
// tools write it: only dates, counters and addresses of cards are left out. What
// it says may depend on the order in which objects were made.
func Listing(h *Host) (string, error) {
	var b strings.Builder
	for _, v := range append(slices.Clone(views), view{command: []string{"ip", "-brief", "addr"}}) {
		out, err := h.Run(v.command[0], v.command[1:]...)
		if err != nil {
			return "", fmt.Errorf("listing what %s has: %w", h.Role, err)
		}
		fmt.Fprintln(&b, "==", strings.Join(v.command, " "))
		b.WriteString(counters.ReplaceAllString(dates.ReplaceAllString(out, ""), ""))
	}
	return b.String(), nil
}
