package control

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source/file"
	"svcproxy.dev/svcproxy/source/keep"
)

// Rollback is the question of a POST to /v1/rollback; its answer is a file.Revision.
type Rollback struct {
	File   string `json:"file,omitempty"` // empty: that of the version
	Number int    `json:"number"`
}

// Apply is the question of a POST to /v1/apply; its answer is a file.Application.
type Apply struct {
	Timeout time.Duration `json:"timeout"` // in ns
}

// Confirmation is the answer of a POST to /v1/confirm.
type Confirmation struct {
	file.Confirmation
	Sources []string `json:"sources,omitempty"` // whose server's answer was held, and is used now
}

// WriteHistory writes versions of files for people. Nothing in them can steer the terminal.
func WriteHistory(w io.Writer, list []keep.Revision) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no version of a service file is kept")
		return err
	}
	t := newTable(w, time.Time{})
	t.row("VERSION", "FILE", "ACCEPTED", "OWNER", "SERVICES", "CHANGED")
	for _, r := range list {
		t.row(strconv.Itoa(r.Number), r.File, r.At.Local().Format("2006-01-02 15:04:05"), owner(r), services(r), ChangedIn(r))
	}
	return t.end()
}

func services(r keep.Revision) string {
	if r.OfEndpoints() {
		return "-"
	}
	return strconv.Itoa(r.Services)
}

func owner(r keep.Revision) string {
	switch {
	case r.UID < 0:
		return "-"
	case r.Owner == "":
		return strconv.Itoa(r.UID)
	}
	return strconv.Itoa(r.UID) + "/" + r.Owner
}

// ChangedIn says what a version changed: "+1 -2 ~0: +default/a -default/b ..., in use".
func ChangedIn(r keep.Revision) string {
	text := fmt.Sprintf("+%d -%d ~%d", r.Added, r.Removed, r.Changed)
	if len(r.Names) > 0 {
		text += ": " + strings.Join(r.Names, " ")
	}
	if r.Added+r.Removed+r.Changed > len(r.Names) {
		text += " ..."
	}
	if r.Sum == "" {
		text += ", the file was removed"
	}
	if r.InUse {
		text += ", in use"
	}
	return text
}
