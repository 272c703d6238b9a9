// Package fatal ends a test that cannot go on.
package fatal

// A TB is a testing.TB, or the one of rapid.
type TB interface {
	Helper()
	Fatal(args ...any)
}

// If ends the test where err is not nil, and names the line of its caller.
func If(t TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
