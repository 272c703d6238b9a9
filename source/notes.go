package source

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Bounds of what a service says to people. Those of labels are the ones of Kubernetes, except for their number.
const (
	MaxDescription = 256 // bytes of Service.Description
	MaxLabels      = 64  // of a service

	maxLabelPrefix = 253 // bytes of what stands before the slash of a label's key
	maxLabelWord   = 63  // bytes of the rest of it, and of a value
)

// IsLabelKey reports whether s can be the key of a label: 1 to 63 of a-z, A-Z, 0-9, "-", "_" and ".",
// beginning and ending with a letter or digit; before it may stand DNS labels with points between them,
// 253 bytes at most, and a slash.
func IsLabelKey(s string) bool {
	prefix, word, prefixed := strings.Cut(s, "/")
	if !prefixed {
		prefix, word = "a", s
	}
	return len(prefix) <= maxLabelPrefix && !slices.ContainsFunc(strings.Split(prefix, "."), func(l string) bool { return !IsLabel(l) }) &&
		len(word) <= maxLabelWord && IsName(word)
}

// IsLabelValue reports whether s can be the value of a label: nothing, or as the key without what stands
// before the slash.
func IsLabelValue(s string) bool { return s == "" || len(s) <= maxLabelWord && IsName(s) }

// notes finds what cannot be shown.
func (v *validator) notes() {
	at := At("description")
	if n := len(v.Description); n > MaxDescription {
		v.fault(at, fmt.Sprintf("the description has %d bytes", n), fmt.Sprintf("want %d at most", MaxDescription))
	}
	if i := strings.IndexFunc(v.Description, func(r rune) bool { return !strconv.IsPrint(r) }); i >= 0 {
		v.fault(at, "the description is no line of plain text: "+Excerpt(v.Description), "")
	}
	for _, key := range slices.Sorted(maps.Keys(v.Labels)) {
		if v.full() {
			return
		}
		if !IsLabelKey(key) {
			v.fault(At("labels", key), Excerpt(key)+" is not the key of a label", `want 1 to 63 of a-z, A-Z, 0-9, -, _ and ., beginning and ending with a letter or digit, such as team or example.com/team`)
		}
		if value := v.Labels[key]; !IsLabelValue(value) {
			v.fault(At("labels", key), "the label "+Excerpt(key)+" is "+Excerpt(value), `want 0 to 63 of a-z, A-Z, 0-9, -, _ and ., beginning and ending with a letter or digit`)
		}
	}
}
