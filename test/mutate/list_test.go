package main

import "testing"

// The faults that histories have to find still fit the code.
func TestListFits(t *testing.T) {
	faults, _, err := readList("../history/faults.json", "../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(faults) < 10 {
		t.Errorf("%d faults, want ten or more", len(faults))
	}
	for _, f := range faults {
		if err := f.builds(t.Context()); err != nil {
			t.Errorf("%s: %v", f.pos, err)
		}
	}
}
