package jinja

func dictMethod(name string) bool {
	switch name {
	case "items", "keys", "values", "get", "copy", "pop", "popitem", "update", "setdefault", "clear", "fromkeys":
		return true
	}
	return false
}

func listMethod(name string) bool {
	switch name {
	case "index", "count", "copy", "append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear":
		return true
	}
	return false
}

// changes tells of methods that change a dict or a list.
func changes(name string) bool {
	switch name {
	case "pop", "popitem", "update", "setdefault", "clear", "append", "extend", "insert", "remove", "reverse", "sort":
		return true
	}
	return false
}

func callMethod(self any, name string, args []any, kw []kwarg) any {
	p := params{name, args, kw}
	switch self := self.(type) {
	case string:
		return strCall(self, p)
	case *Dict:
		return dictCall(self, p)
	case *List:
		return listCall(self, p)
	case *loop:
		p.known(len(args))
		return self.method(name, args)
	case *cycler:
		p.known(0)
		return self.method(name)
	}
	fail("a %s has no method %s", typeName(self), name)
	return nil
}

func dictCall(d *Dict, p params) any {
	switch p.name {
	case "items":
		p.known(0)
		return &List{Items: pairs(d), kind: kindView}
	case "keys":
		p.known(0)
		return &List{Items: items(d), kind: kindView}
	case "values":
		p.known(0)
		return &List{Items: append([]any(nil), d.vals...), kind: kindView}
	case "get":
		p.known(2)
		if k, ok := p.get(0, "key", nil).(string); ok {
			if v, ok := d.Get(k); ok {
				return v
			}
		}
		return p.get(1, "default", nil)
	case "copy":
		p.known(0)
		c := &Dict{}
		for i, k := range d.keys {
			c.Set(k, d.vals[i])
		}
		return c
	}
	fail("dict method %s is not supported", p.name)
	return nil
}

// pairs are the (key, value) tuples of a dict.
func pairs(d *Dict) []any {
	out := make([]any, d.Len())
	for i, k := range d.keys {
		out[i] = &List{Items: []any{k, d.vals[i]}, kind: kindTuple}
	}
	return out
}

func listCall(l *List, p params) any {
	p.known(1)
	switch p.name {
	case "index":
		for i, x := range l.Items {
			if equal(x, p.get(0, "value", nil)) {
				return int64(i)
			}
		}
		fail("value is not in the list")
	case "count":
		n := int64(0)
		for _, x := range l.Items {
			if equal(x, p.get(0, "value", nil)) {
				n++
			}
		}
		return n
	case "copy":
		return &List{Items: append([]any(nil), l.Items...)}
	}
	fail("list method %s is not supported", p.name)
	return nil
}
