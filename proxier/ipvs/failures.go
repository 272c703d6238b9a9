package ipvs

import (
	"errors"
	"fmt"
)

// maxErrors is how many errors of one sync are told; one cause can have thousands.
const maxErrors = 8

// failures collect what went wrong in a sync that goes on.
type failures struct {
	errs []error
	n    int
}

func (f *failures) add(err error) {
	if err == nil {
		return
	}
	if f.n++; f.n <= maxErrors {
		f.errs = append(f.errs, err)
	}
}

// join returns the first errors and how many there are besides; nil for none.
func (f *failures) join() error {
	if more := f.n - len(f.errs); more > 0 {
		return errors.Join(append(f.errs, fmt.Errorf("and %d more", more))...)
	}
	return errors.Join(f.errs...)
}
